"""A parallel strategy: each feature's mean over the shards that have it."""

import numpy as np

from torchtune_smt.parallel.mixing import Mixing


class MeanOfThose(Mixing):
    """As IterMix, but a shard that has never used a feature has no say in its weight."""

    def combine(self, columns):
        """Return the weights (float64 [D]) that all shards go on with."""
        return columns.total / np.maximum(columns.count, 1)
