"""The templates of sparse features that a configuration can name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torchtune_smt.features.spelling_kernels import RULE_ID, RULE_SHAPE, SOURCE_NGRAM
from torchtune_smt.features.template import is_gap


class RuleId:
    """One feature a rule, fired by each use of it: ``rule_id:ein_[1]~a_[1]``.

    Source: all three papers ([L13] §3: rule identifiers; [G13]: discriminative phrase table).

    Parameters
    ----------
    min_count : int
        See `RuleTemplate`.
    """

    name = "rule_id"
    spelling: ClassVar[int] = RULE_ID

    def __init__(self, min_count: int = 0) -> None:
        self.min_count = min_count

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's own feature."""
        return [f"rule_id:{'_'.join(source)}~{'_'.join(target)}"]


class SourceNgram:
    """Bigrams of a rule's source side, gaps as X: ``source_ngram:[X]_hat``. Source: [S12]."""

    name = "source_ngram"
    spelling: ClassVar[int] = SOURCE_NGRAM

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return one feature for each pair of neighbours."""
        symbols = ["[X]" if is_gap(symbol) else symbol for symbol in source]
        return [f"source_ngram:{a}_{b}" for a, b in pairwise(symbols)]


class RuleShape:
    """Both sides of a rule, runs of words as one T: ``rule_shape:T_[1]~[1]_T``. Source: [S12]."""

    name = "rule_shape"
    spelling: ClassVar[int] = RULE_SHAPE

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's shape."""
        return [f"rule_shape:{_shape(source)}~{_shape(target)}"]


def _shape(symbols: Sequence[str]) -> str:
    runs: list[str] = []
    for symbol in symbols:
        if is_gap(symbol):
            runs.append(symbol)
        elif not runs or runs[-1] != "T":
            runs.append("T")
    return "_".join(runs)


class WordAlignment:
    """Links of a rule, ``alignment:haus~house``, and words without one, ``alignment:ja~``.

    Those without one are source words that are deleted. Source: [G13].

    Parameters
    ----------
    insertions : bool
        Target words without a link, too: ``alignment:~the``.
    min_count : int
        See `RuleTemplate`.
    """

    name = "alignment"

    def __init__(self, insertions: bool = False, min_count: int = 0) -> None:
        self.insertions = insertions
        self.min_count = min_count

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return none: there are no links."""
        return []

    def aligned_features(
        self, source: Sequence[str], target: Sequence[str], links: Sequence[tuple[int, int]]
    ) -> list[str]:
        """Return one feature for each link, and for each word without one."""
        names = [f"alignment:{source[s]}~{target[t]}" for s, t in links]
        linked = {s for s, _ in links}
        names += [
            f"alignment:{word}~"
            for s, word in enumerate(source)
            if s not in linked and not is_gap(word)
        ]
        if self.insertions:
            linked = {t for _, t in links}
            names += [
                f"alignment:~{word}"
                for t, word in enumerate(target)
                if t not in linked and not is_gap(word)
            ]
        return names


class LexReordering:
    """How phrases are ordered, ``lex_reordering:before_swap``: the eight classes of [G13].

    Three towards what is before a phrase on the target side (``before_monotone``, ``before_swap``,
    ``before_discontinuous``), three towards what is behind it (``behind_...``), and, of the former,
    ``monotone`` and ``nonmonotone``.

    Parameters
    ----------
    behind : bool
        Whether there are classes towards what is behind a phrase.
    lexicalized : bool
        Features of each phrase pair: ``lex_reordering:before_swap:ein_haus~a_house``.
    min_count : int
        See `RuleTemplate`.
    """

    name = "lex_reordering"

    def __init__(self, behind: bool = True, lexicalized: bool = False, min_count: int = 0) -> None:
        self.behind = behind
        self.lexicalized = lexicalized
        self.min_count = min_count

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return none: they depend on orientation."""
        return []

    def oriented_features(
        self, source: Sequence[str], target: Sequence[str], orientation: str, *, behind: bool
    ) -> list[str]:
        """Return the classes that an orientation belongs to."""
        kind = orientation.split()[0]
        if behind:
            classes = [f"behind_{kind}"] if self.behind else []
        else:
            classes = [f"before_{kind}"]
            # Models that tell left from right alone do not say.
            if kind not in ("left", "right"):
                classes.append("monotone" if kind == "monotone" else "nonmonotone")
        rule = f":{'_'.join(source)}~{'_'.join(target)}" if self.lexicalized else ""
        return [f"lex_reordering:{name}{rule}" for name in classes]
