"""Weights as decoders and gradients see them: to be read, and not changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.vocabulary import FeatureMap, Vocabulary

# Weights that a repr has, the largest ones.
_SHOWN: Final = 10


class Snapshot(Protocol):
    """Weights that can be read."""

    @property
    def version(self) -> int:
        """How many times the weights had been changed."""

    def read(self, features: Vocabulary | None, ids: Integers) -> Float64:
        """Return the weights (float64) of some features; 0 for names that are unknown.

        features: the reader's own; None: the weights' own.
        ids: in `features`.
        """


class NamedWeights(Snapshot, Protocol):
    """Weights that know the names of their features."""

    @property
    def features(self) -> Vocabulary:
        """Names of the features."""

    @property
    def n_dense(self) -> int:
        """The number of dense features, whose ids are the first."""


class ByName:
    """Weights as names and values, for people."""

    features: Vocabulary

    def numbers(self) -> Float64:
        """Return the weights (float64), of the first so many features."""
        raise NotImplementedError

    def items(self) -> Iterator[tuple[str, float]]:
        """Yield name and weight of each feature, those of 0, too."""
        values = self.numbers().tolist()
        return zip(self.features.names(range(len(values))), values, strict=True)

    def to_dict(self) -> dict[str, float]:
        """Return the weights by name."""
        return dict(self.items())

    def __repr__(self) -> str:
        values = self.numbers()
        largest = np.argsort(-np.abs(values), kind="stable")[:_SHOWN].tolist()
        shown = [f"{self.features[id]}={values[id]:.6g}" for id in largest]
        more = [f"{values.size - len(shown):,} more"] if values.size > len(shown) else []
        return f"{type(self).__name__}({', '.join([*shown, *more])})"


class FrozenWeights(ByName):
    """Weights that stay as they are; they can be pickled and sent elsewhere.

    features: may get more names, whose weights are 0.
    values (float64 [n]): of the first n features; not to be changed.
    """

    def __init__(
        self, features: Vocabulary, values: Float64, version: int = 0, n_dense: int = 0
    ) -> None:
        self.features = features
        self.values = values
        self.version = version
        self.n_dense = n_dense
        self._map: FeatureMap | None = None

    @classmethod
    def of(cls, weights: Mapping[str, float]) -> FrozenWeights:
        """Return weights given by name."""
        return cls(Vocabulary(weights), np.array(list(weights.values()), np.float64))

    def __len__(self) -> int:
        return self.values.size

    def numbers(self) -> Float64:
        """Return the weights, of the first so many features."""
        return self.values

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be found again."""
        return {**self.__dict__, "_map": None}

    def read(self, features: Vocabulary | None, ids: Integers) -> Float64:
        """Return the weights of some features (see `Snapshot.read`)."""
        if features is None or features is self.features:
            own = ids.astype(np.int64, copy=False)
        else:
            if self._map is None or self._map.source is not features:
                self._map = FeatureMap(features, self.features)
            own = self._map.lookup(ids)
        return chosen_or_zero(self.values, own)


def chosen_or_zero(values: Float64, ids: Int64) -> Float64:
    """Return some entries of a vector; 0 for ids that are -1 or behind its end."""
    known = (ids >= 0) & (ids < values.size)
    if known.all():
        return values[ids]
    result: Float64 = np.zeros(ids.size)
    result[known] = values[ids[known]]
    return result
