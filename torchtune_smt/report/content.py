"""What a report shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torchtune_smt.decoders.base import Derivation
from torchtune_smt.evaluation.analysis import Bucket, NgramDifference, Piece
from torchtune_smt.evaluation.table import Table


@dataclass(frozen=True)
class Contribution:
    """What a feature adds to the difference of two translations' model scores.

    Attributes
    ----------
    name : str
    weight : float
    difference : float
        Of the feature's values.
    """

    name: str
    weight: float
    difference: float

    @property
    def value(self) -> float:
        """What it adds."""
        return self.weight * self.difference


@dataclass(frozen=True)
class Side:
    """A system's translation of a sentence.

    Attributes
    ----------
    system : str
    gain : float
        BLEU+1, 0..100.
    decided : sequence of Contribution
        Why its model prefers this translation to the other one, the largest first.
    margin : float, optional
        All contributions together: what the decoder's search has not found may make it negative.
    derivation : Derivation, optional
    """

    system: str
    gain: float
    decided: Sequence[Contribution] = ()
    margin: float | None = None
    derivation: Derivation | None = None


@dataclass(frozen=True)
class Example:
    """A sentence and its translations by one system or two.

    Attributes
    ----------
    number : int
        From 1.
    source : str
        Empty where it is not known.
    references : sequence of str
    known : collection of str
        Their words, as BLEU counts them.
    pieces : sequence of Piece
        The translations as BLEU's words, aligned; of one system, the same on both sides.
    sides : sequence of Side
    """

    number: int
    source: str
    references: Sequence[str]
    known: Collection[str]
    pieces: Sequence[Piece]
    sides: Sequence[Side]


@dataclass(frozen=True)
class Pair:
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


@dataclass(frozen=True)
class WeightRow:
    """A feature with a large weight.

    Attributes
    ----------
    name : str
    weight : float
    example : tuple of str
        A source sentence and its translation, in which it fires; empty if none was met.
    """

    name: str
    weight: float
    example: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupRow:
    """A group of features that share a weight."""

    number: str
    weight: str
    size: str
    members: Sequence[str]


@dataclass(frozen=True)
class Model:
    """What a system's median run has learnt.

    Attributes
    ----------
    system, run : str
    weights : dict of str to list of WeightRow
        The largest of each template.
    looked_at : int
        Sentences that were decoded to find examples.
    groups : sequence of GroupRow
    """

    system: str
    run: str
    weights: dict[str, list[WeightRow]]
    looked_at: int
    groups: Sequence[GroupRow] = ()


@dataclass(frozen=True)
class Report:
    """All of a page.

    Attributes
    ----------
    title : str
    tables : sequence of Table
        The scores, a table a metric.
    systems : sequence of str
        In the order of the scores of buckets.
    runs : dict of str to str
        The run whose translations are shown, of systems with several.
    curves : str
        The learning curves as SVG; empty if there are none.
    words, lengths : sequence of Bucket
    pairs : sequence of Pair
    models : sequence of Model
    notes : sequence of str
        How words were made of text, what is missing, and why.
    """

    title: str
    tables: Sequence[Table]
    systems: Sequence[str]
    words: Sequence[Bucket]
    lengths: Sequence[Bucket]
    pairs: Sequence[Pair]
    runs: dict[str, str] = field(default_factory=dict)
    curves: bytes = b""
    models: Sequence[Model] = ()
    notes: Sequence[str] = ()
