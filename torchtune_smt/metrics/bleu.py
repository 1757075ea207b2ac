"""Sentence-level BLEU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.metrics import bleu_kernels as kernels
from torchtune_smt.metrics.base import References, check_references

Counts = NDArray[np.int64]
"""Rows of BLEU's statistics; see `BleuReferences.statistics`."""


class BleuReferences:
    """References prepared for counting n-gram matches.

    Parameters
    ----------
    references : sequence of sequence of list of str
        ``references[i]``: those of sentence i, tokenised; their number may differ. None at all for
        lists that have their statistics.
    words : Vocabulary
        Gives the ids in which hypotheses are written. Words of the references are added to
        it, since a hypothesis may bring them later (as a copied unknown word, for example).

    Raises
    ------
    InputError
        A sentence has no references, or only empty ones.
    """

    def __init__(self, references: References, words: Vocabulary) -> None:
        check_references(references)
        flat = [reference for alternatives in references for reference in alternatives]
        lengths = np.array([len(reference) for reference in flat], np.int64)
        group = offsets([len(alternatives) for alternatives in references])
        begin = offsets(lengths)
        tokens = words.intern([word for reference in flat for word in reference])

        sizes = begin[group[1:]] - begin[group[:-1]]
        rooms = np.array([1 << (2 * int(size)).bit_length() for size in sizes], np.int64)
        self._root_begin = offsets(rooms)
        self._roots = np.full(self._root_begin[-1], -1, np.int32)
        nodes = np.empty((kernels.ORDER * tokens.size, 4), np.int32)
        self._node_begin = kernels.build_tries(
            tokens, begin, group, self._root_begin, self._roots, nodes
        )
        self._nodes = nodes[: self._node_begin[-1]].copy()
        self._length_begin = group
        # Ascending lengths make the shorter of two equally close ones come first.
        order = np.lexsort((lengths, np.repeat(np.arange(group.size - 1), np.diff(group))))
        self._lengths = lengths[order]

    def __len__(self) -> int:
        return self._length_begin.size - 1

    def shortest(self) -> NDArray[np.int64]:
        """Return the length of each sentence's shortest reference."""
        return self._lengths[self._length_begin[:-1]]

    def with_statistics(self, lists: KBestLists) -> KBestLists:
        """Return lists with the statistics of their hypotheses; see `statistics`."""
        if lists.statistics is not None:
            return lists
        rows = [np.empty((0, kernels.STATISTICS)), *map(self.statistics, lists)]
        return replace(lists, statistics=np.concatenate(rows).astype(np.int32))

    def statistics(self, kbest: KBest) -> Counts:
        """Return sacrebleu's sufficient statistics for each hypothesis, the list's own if any.

        Returns
        -------
        int64 [k, 10]
            Clipped matches m_1..m_4; n-grams in the hypothesis l_1..l_4; hypothesis length c;
            length r of the closest reference (of two equally close ones the shorter).

        Raises
        ------
        InputError
            There are no references for ``kbest.index``.
        """
        if kbest.statistics is not None:
            return kbest.statistics.astype(np.int64)
        if not 0 <= kbest.index < len(self):
            raise InputError(
                f"no references for sentence {kbest.index} (counted from 0): there are "
                f"{len(self)}; give as many references as sentences"
            )
        return kernels.match_statistics(
            kbest.index,
            self._root_begin,
            self._roots,
            self._node_begin,
            self._nodes,
            self._length_begin,
            self._lengths,
            *kbest.strings(),
        )


class SentenceBleu(ABC):
    """A gain that is computed from BLEU's statistics: one method makes a new variant."""

    from_statistics: ClassVar[bool] = True

    @abstractmethod
    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k]) of each row of `BleuReferences.statistics`."""

    def bind(self, references: References, words: Vocabulary) -> BoundBleu:
        """Prepare the references once; see `BleuReferences`."""
        return BoundBleu(self, BleuReferences(references, words))


class BoundBleu:
    """A `SentenceBleu` for one set of references; a sentence's gains may get a factor (int64)."""

    def __init__(
        self,
        metric: SentenceBleu,
        references: BleuReferences,
        factors: NDArray[np.int64] | None = None,
    ) -> None:
        self._metric = metric
        self._references = references
        self._factors = factors

    def gains(self, kbest: KBest) -> Float64:
        """Return the gain (float64 [k]) of each hypothesis."""
        gains = self._metric.score(self._references.statistics(kbest))
        return gains if self._factors is None else gains * self._factors[kbest.index]
