"""k-best lists one behind the other, as batch tuners take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest import flat_lists_kernels as kernels
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.metrics.bleu import Counts
from torchtune_smt.samplers.pairs import PairSampler, pair_rows


@dataclass(frozen=True)
class FlatLists:
    """k-best lists of S sentences, n hypotheses in all.

    Attributes
    ----------
    sentence : int64 [S]
        `Source.index` of each list, ascending.
    list_begin : int64 [S + 1]
        Hypotheses of list s are ``list_begin[s] .. list_begin[s + 1] - 1``.
    row_begin : int64 [n + 1]
    feature : int32 [non-zeros]
        Ascending within a row, below `dimension`.
    value : float64 [non-zeros]
    gain : float64 [n]
        Sentence-level gains.
    statistics : int32 [n, 10]
        m_1..m_4, l_1..l_4, c, r, as `BleuReferences.statistics` has them; [n, 0] where there
        are none.
    dimension : int
        D, the number of features.
    """

    sentence: Int64
    list_begin: Int64
    row_begin: Int64
    feature: Int32
    value: Float64
    gain: Float64
    statistics: Int32
    dimension: int

    @classmethod
    def of_kbests(
        cls, kbests: Sequence[KBest], dimension: int, statistics: Sequence[Counts] | None = None
    ) -> FlatLists:
        """Return k-best lists with gains.

        Parameters
        ----------
        kbests : sequence of KBest
            In ascending order of `index`.
        dimension : int
        statistics : sequence of int64 [k, 10], optional
            For each list those of its hypotheses.

        Raises
        ------
        ValueError
            The order is another one; a list has no gains, or one of them is not finite.
        """
        sentence = np.array([kbest.index for kbest in kbests], np.int64)
        if (np.diff(sentence) <= 0).any():
            raise ValueError("lists must be in ascending order of their index, one a sentence")
        lengths = [np.diff(kbest.rows.begin) for kbest in kbests]
        rows = np.concatenate(statistics) if statistics else np.empty((0, 10))
        if statistics is None:
            rows = np.empty((sum(map(len, kbests)), 0))
        return cls(
            sentence,
            _begins(np.array([len(kbest) for kbest in kbests], np.int64)),
            _begins(np.concatenate([np.empty(0, np.int64), *lengths])),
            np.concatenate([np.empty(0, np.int64), *(k.rows.feature for k in kbests)]).astype(
                np.int32
            ),
            np.concatenate([np.empty(0), *(kbest.rows.value for kbest in kbests)]),
            np.concatenate([np.empty(0), *(kbest.finite_gains() for kbest in kbests)]),
            rows.astype(np.int32),
            dimension,
        )

    def __len__(self) -> int:
        return self.sentence.size

    @property
    def n_hypotheses(self) -> int:
        """The number of hypotheses in all lists."""
        return self.gain.size

    @property
    def has_statistics(self) -> bool:
        """Whether hypotheses come with BLEU's statistics."""
        return bool(self.statistics.shape[1])

    def scores(self, weights: Float64) -> Float64:
        """Return the score W·H (float64 [n]) of each hypothesis; `weights`: float64 [D]."""
        if weights.size != self.dimension:
            raise ValueError(f"{weights.size} weights were given for {self.dimension} features")
        out = np.empty(self.n_hypotheses)
        kernels.score_rows(self.row_begin, self.feature, self.value, weights, out)
        return out

    def best(self, weights: Float64) -> Int64:
        """Return for each list the hypothesis of the largest score (int64 [S]), first of ties.

        Hypotheses are numbered throughout: list s has ``list_begin[s]`` and what follows.
        """
        out = np.empty(len(self), np.int64)
        kernels.best_rows(self.list_begin, self.scores(weights), out)
        return out

    def projected(self, rename: Int64, dimension: int) -> FlatLists:
        """Return the lists over other features.

        Parameters
        ----------
        rename : int64 [D]
            The new id of each feature; -1 leaves it out. Values of features that get one id are
            added up; what becomes 0, but for rounding, is left out.
        dimension : int
            Number of new features.
        """
        rows = kernels.rename_rows(self.row_begin, self.feature, self.value, rename, dimension)
        row_begin, feature, value = rows
        return replace(self, row_begin=row_begin, feature=feature, value=value, dimension=dimension)

    def kbest(self, s: int) -> KBest:
        """Return list `s` with its gains, for samplers and losses.

        No words are kept, and no scores.
        """
        first, last = self.list_begin[s : s + 2].tolist()
        begin, end = self.row_begin[first], self.row_begin[last]
        rows = Rows(
            self.row_begin[first : last + 1] - begin, self.feature[begin:end], self.value[begin:end]
        )
        return KBest(index=int(self.sentence[s]), rows=rows, gain=self.gain[first:last])

    def pair_rows(self, sampler: PairSampler, seed: Sequence[int]) -> Rows:
        """Return pairs of each list, drawn with ``(*seed, sentence)``, list after list."""
        kbests = (self.kbest(s) for s in range(len(self)))
        return pair_rows(kbests, sampler, seed)

    def dense_matrix(self, n_dense: int) -> Float64:
        """Return the values of the features below `n_dense` as a matrix, float64 [n, n_dense]."""
        out = np.zeros((self.n_hypotheses, n_dense))
        kernels.dense_columns(self.row_begin, self.feature, self.value, out)
        return out


def _begins(lengths: Int64) -> Int64:
    """Return where each of consecutive pieces begins, and where the last one ends."""
    begins = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    return begins
