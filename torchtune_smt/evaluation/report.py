"""A comparison of systems as one HTML page that needs nothing else: what it shows, and the page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from torchtune_smt.decoders.base import Derivation
from torchtune_smt.evaluation.tables import Table
from torchtune_smt.evaluation.translations import Bucket, NgramDifference, Piece


class Addend(NamedTuple):
    """A feature's weight, and the difference of its values in two translations."""

    name: str
    weight: float
    difference: float

    @property
    def value(self) -> float:
        """What it adds."""
        return self.weight * self.difference


class Side(NamedTuple):
    """A system's translation of a sentence.

    Attributes
    ----------
    system : str
    gain : float
        BLEU+1, 0..100.
    decided : sequence of Addend
        Why its model prefers this translation to the other one, the largest first.
    margin : float, optional
        All contributions together: what the decoder's search has not found may make it negative.
    derivation : Derivation, optional
    """

    system: str
    gain: float
    decided: Sequence[Addend] = ()
    margin: float | None = None
    derivation: Derivation | None = None


class Example(NamedTuple):
    """A sentence and its translations by one system or two.

    Attributes
    ----------
    number : int
        From 1.
    source : str
        Empty where it is not known.
    known : collection of str
        The references' words, as BLEU counts them.
    pieces : sequence of Piece
        The translations as BLEU's words, aligned; of one system, the same on both sides.
    """

    number: int
    source: str
    references: Sequence[str]
    known: Collection[str]
    pieces: Sequence[Piece]
    sides: Sequence[Side]


class Pair(NamedTuple):
    """A system beside the baseline; or a system alone.

    Attributes
    ----------
    systems : sequence of str
        The system, and the baseline if there is one.
    better, worse : sequence of Example
        Where the system is most above, and most below, the baseline, or its own mean.
    more, fewer : sequence of NgramDifference
        The n-grams that the system gets more often, and less often, than the baseline.
    """

    systems: Sequence[str]
    better: Sequence[Example]
    worse: Sequence[Example]
    more: Sequence[NgramDifference] = ()
    fewer: Sequence[NgramDifference] = ()


class WeightRow(NamedTuple):
    """A feature with a large weight, and a sentence, with a translation, in which it fires."""

    name: str
    weight: float
    example: tuple[str, ...] = ()


class GroupRow(NamedTuple):
    """A group of features that share a weight."""

    number: str
    weight: str
    size: str
    members: Sequence[str]


class Model(NamedTuple):
    """What a system's median run has learnt: the largest weights of each template.

    `looked_at` sentences were decoded to find examples.
    """

    system: str
    run: str
    weights: Mapping[str, list[WeightRow]]
    looked_at: int
    groups: Sequence[GroupRow] = ()


class Report(NamedTuple):
    """All of a page.

    Attributes
    ----------
    tables : sequence of Table
        The scores, a table a metric.
    systems : sequence of str
        In the order of the scores of buckets.
    runs : dict of str to str
        The run whose translations are shown, of systems with several.
    curves : bytes
        The learning curves as SVG; empty if there are none.
    notes : sequence of str
        How words were made of text, what is missing, and why.
    """

    title: str
    tables: Sequence[Table]
    systems: Sequence[str]
    words: Sequence[Bucket]
    lengths: Sequence[Bucket]
    pairs: Sequence[Pair]
    runs: Mapping[str, str] = {}
    curves: bytes = b""
    models: Sequence[Model] = ()
    notes: Sequence[str] = ()


def page(report: Report) -> str:
    """Return a report as HTML.

    Whatever comes from outside is escaped, and pictures are drawn from data in the page. A content
    security policy forbids the browser to load or to run anything.
    """
    environment = Environment(
        loader=PackageLoader("torchtune_smt.evaluation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    picture = b64encode(report.curves).decode("ascii")
    return environment.get_template("page.html.jinja").render(report=report, picture=picture)
