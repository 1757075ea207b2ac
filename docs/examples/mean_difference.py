"""A batch solver: the mean difference between better and worse hypotheses (Rocchio 1971)."""

from dataclasses import dataclass

import numpy as np

from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.solver import Solution


@dataclass(frozen=True)
class MeanDifference:
    """W = the sum of H(better) - H(worse) over all pairs, scaled to a length of its own."""

    sampler: PairSampler
    length: float = 1.0

    def solve(self, lists, start, seed):
        """Return weights for k-best lists, and what the log is to have."""
        pairs = pair_rows(lists, self.sampler, seed)
        total = np.bincount(pairs.feature, weights=pairs.value, minlength=start.size)
        norm = np.linalg.norm(total)
        return Solution(total * (self.length / norm if norm else 1.0), {"pairs": len(pairs)})
