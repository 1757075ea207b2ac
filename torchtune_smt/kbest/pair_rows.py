"""Pairs of hypotheses as the difference of their features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from torchtune_smt.core import scoring_kernels
from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.kbest import flat_lists_kernels as kernels
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.samplers.pairs import PairSampler


@dataclass(frozen=True)
class PairRows:
    """Rows x = H(better) - H(worse) in CSR form, one a pair.

    What cancels is left out, also where it does so but for rounding; a row may be empty, and
    counts still.

    Attributes
    ----------
    row_begin : int64 [N + 1]
    feature : int32 [non-zeros]
        Ascending within a row.
    value : float64 [non-zeros]
    """

    row_begin: Int64
    feature: Int32
    value: Float64

    @classmethod
    def sampled(
        cls, kbests: Iterable[KBest], sampler: PairSampler, seed: Sequence[int]
    ) -> PairRows:
        """Return the pairs of some k-best lists with gains, list after list.

        Parameters
        ----------
        seed : sequence of int
            The pairs of a list are drawn with ``(*seed, kbest.index)``.
        """
        lengths = [np.empty(0, np.int64)]
        features = [np.empty(0, np.int32)]
        values = [np.empty(0)]
        for kbest in kbests:
            pairs = sampler.sample(kbest, (*seed, kbest.index))
            length, feature, value = scoring_kernels.difference_rows(
                kbest.row_begin, kbest.feature, kbest.value, pairs
            )
            lengths.append(length)
            features.append(feature.astype(np.int32))
            # A copy: what the kernel returns keeps room for all that might have been there.
            values.append(value.copy())
        row_begin = np.append(np.int64(0), np.cumsum(np.concatenate(lengths)))
        return cls(row_begin, np.concatenate(features), np.concatenate(values))

    def __len__(self) -> int:
        return self.row_begin.size - 1

    def projected(self, rename: Int64, dimension: int) -> PairRows:
        """Return the pairs over other features; see `FlatLists.projected`."""
        rows = kernels.rename_rows(self.row_begin, self.feature, self.value, rename, dimension)
        return PairRows(*rows)
