"""A sampler of pairs: the best hypothesis of a list against the worst ones."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BestWorst:
    """Pairs of the largest gain with the smallest gains. Nothing is drawn at random."""

    pairs: int = 5

    def sample(self, kbest, seed):
        """Return int64 [p, 2]: numbers of hypotheses, the better one first."""
        order = np.argsort(-kbest.gain, kind="stable")
        worst = [h for h in order[: -self.pairs - 1 : -1] if kbest.gain[h] < kbest.gain[order[0]]]
        return np.array([(order[0], h) for h in worst], np.int64).reshape(-1, 2)
