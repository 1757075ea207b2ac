"""Phrase tables with lexicalised reordering scores."""

from __future__ import annotations

from pathlib import Path

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import places_of
from torchtune_smt.grammar.file_grammar import FileGrammar, Side
from torchtune_smt.grammar.reordering import ReorderingType

RULE_COUNT = "LogRuleCount"
UNIQUE_RULE = "UniqueRule"


def reordering_names(kind: ReorderingType, name: str = "LexicalReordering0") -> list[str]:
    """Return the names of reordering scores."""
    return [f"{name}_{i}" for i in range(kind.scores)]


class PhraseTable(FileGrammar):
    """Phrase pairs with their scores: a grammar without gaps.

    Parameters
    ----------
    source, target : Side
        There are no non-terminals.
    dense_names : list of str
        Names of the scores.
    dense : float64 [phrases, scores]
        Natural logarithms.
    reordering : ReorderingType, optional
        What the last columns of `dense` are.
    point_begin : int64 [phrases + 1], optional
    points : int32 [points, 2], optional
        Word alignment of each phrase pair: places of a source and of a target word.
    counts : float64 [phrases], optional
        How often each occurred.
    uncounted : (Path, int), optional
        Where the first line is that does not say so, if that is why there are no counts.

    Attributes
    ----------
    reordering : ReorderingType or None
    point_begin, points
        As given, in the order of the phrases' ids; None if there is no alignment.
    """

    gaps = False

    def __init__(
        self,
        source: Side,
        target: Side,
        dense_names: list[str],
        dense: Float64,
        *,
        reordering: ReorderingType | None = None,
        point_begin: Int64 | None = None,
        points: Int32 | None = None,
        counts: Float64 | None = None,
        uncounted: tuple[Path, int] | None = None,
    ) -> None:
        super().__init__(source, target, dense_names, dense)
        self.reordering = reordering
        self._counts = None if counts is None else counts[self.given]
        self._uncounted = uncounted
        if point_begin is not None and points is not None:
            self.point_begin, places = places_of(point_begin, self.given)
            self.points = points[places]

    def rule_counts(self, rule: Int64) -> Float64:
        """Return how often phrases occurred; see `Grammar`.

        Raises
        ------
        InputError
            A line of the table does not say so.
        """
        if self._uncounted is not None:
            raise no_count(*self._uncounted, "min_count of a template")
        if self._counts is None:
            return super().rule_counts(rule)
        counts: Float64 = self._counts[rule]
        return counts


def no_count(path: Path, line: int, what: str) -> InputError:
    """Return the error of a line of a table that lacks what an option needs."""
    return InputError(
        f"has no positive third count behind the alignment, and {what} needs it; take a table with "
        "the counts of all phrase pairs, as train-model.perl writes it, or leave that option out",
        path=path,
        line=line,
    )
