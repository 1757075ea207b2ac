"""The features that OSCAR pulls at; their number is its d."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import Source
from torchtune_smt.regularizers.oscar_prox import given_dimension_error
from torchtune_smt.tuners.grouping.steps import count_features


class PulledFeatures:
    """Regularised features that are dense, have a weight, or are found in what is tuned on.

    Parameters
    ----------
    weights : Weights
    regularizes_dense : bool
        Whether dense features are among them.
    found : callable
        Returns ids in the weights of those that are found; asked at each count.
    """

    def __init__(
        self, weights: Weights, regularizes_dense: bool, found: Callable[[], Int64]
    ) -> None:
        self._weights = weights
        self._first = 0 if regularizes_dense else weights.n_dense
        self._found = found

    def count(self) -> int:
        """Return how many there are now."""
        found = self._found()
        self._weights.grow()
        start = self._weights.parameter.detach().numpy()
        dense = np.arange(self._weights.n_dense)
        return count_features(start, self._first, np.concatenate([dense, found]))

    def check(self, dimension: int) -> None:
        """Raise InputError if a d is smaller than the number of features with a weight."""
        count = int(self._weights.parameter[self._first :].count_nonzero())
        if dimension < count:
            raise given_dimension_error(
                dimension, "regularised features that have a weight already", count
            )


def features_there(decoder: Decoder, sources: Sequence[Source], weights: Weights) -> Int64:
    """Return the features that a decoder says some sentences have, by their ids in the weights."""
    found = decoder.feature_ids(sources)
    assert found is not None
    return weights.take(decoder.features).lookup(found)
