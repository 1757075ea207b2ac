"""W: the weights of all features known so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.snapshot import ByName, FrozenWeights, chosen_or_zero
from torchtune_smt.core.vocabulary import FeatureMap, Vocabulary


class Weights(ByName):
    """The weights, one a feature, as a parameter that grows with the feature vocabulary.

    They are a `Snapshot` of themselves, as they lie there: where an optimizer puts updates off,
    read them through `Learner.snapshot`, or flush it first.

    dense: names of the dense (default) features, which get the first ids.

    As attributes:
    features: names of the features.
    parameter (torch.nn.Parameter [D]): the weights. After features were added, `grow` makes it as
        long as `features`.
    n_dense: ids below it are dense features.
    version: how many times a learner has changed them.
    readers: whose ids, of so many vocabularies, are not looked up again by their names.
    """

    def __init__(
        self,
        dense: Sequence[str] = (),
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.features = Vocabulary(dense)
        self.n_dense = len(self.features)
        self.version = 0
        self._storage = torch.zeros(max(self.n_dense, 16), dtype=dtype, device=device)
        self.parameter = torch.nn.Parameter(self._storage[: self.n_dense])
        self.readers = 1
        self._maps: dict[int, FeatureMap] = {}

    @classmethod
    def without_names(cls, values: Float64, device: torch.device | str = "cpu") -> Weights:
        """Return a copy of weights (float64 [D]) of features that are known by their ids alone."""
        result = cls()
        result._storage = torch.tensor(values, device=device)
        result.parameter = torch.nn.Parameter(result._storage)
        return result

    def __len__(self) -> int:
        return self.parameter.numel()

    def grow(self) -> None:
        """Make the parameter as long as the feature vocabulary; new weights are 0."""
        length = len(self.features)
        if length <= len(self):
            return
        values = self.parameter.detach()
        # There is no room behind those of a copy, nor after ``parameter.data = ...``.
        kinds = [(v.data_ptr(), v.dtype, v.device) for v in (values, self._storage)]
        if length > self._storage.numel() or kinds[0] != kinds[1]:
            # A quarter more each time keeps the cost of growing constant per feature.
            larger = values.new_zeros(max(length, len(self) * 5 // 4))
            larger[: len(self)] = values
            self._storage = larger
        self.parameter.data = self._storage[:length]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy, or a pickle, is made of: no map of somebody else's names."""
        return {**self.__dict__, "_maps": {}, "_storage": self.parameter.detach()[:0]}

    def take(self, features: Vocabulary) -> FeatureMap:
        """Add all names of a vocabulary that are new, in their order; return their ids here.

        Names that were taken before are not looked at again.
        """
        result = self._map_from(features)
        result.add()
        self.grow()
        return result

    def own_ids(self, features: Vocabulary | None, ids: Integers) -> Int64:
        """Return the ids (int64) of features as `features` numbers them; -1: not known here."""
        if features is None or features is self.features:
            return ids.astype(np.int64, copy=False)
        return self._map_from(features).lookup(ids)

    def read(self, features: Vocabulary | None, ids: Integers) -> Float64:
        """Return the weights (float64) of some features; see `Snapshot.read`."""
        own = self.own_ids(features, ids)
        values = self.parameter.detach()
        if values.dtype == torch.float64 and not values.is_cuda:
            return chosen_or_zero(values.numpy(), own)
        known = (own >= 0) & (own < len(self))
        result: Float64 = np.zeros(own.size)
        chosen = values[torch.from_numpy(own[known]).to(values.device)]
        result[known] = chosen.to("cpu", torch.float64).numpy()
        return result

    def frozen(self) -> FrozenWeights:
        """Return a copy of the weights as they are, which can be sent elsewhere."""
        return FrozenWeights(self.features.copy(), self.numbers(), self.version, self.n_dense)

    def numbers(self) -> Float64:
        """Return a copy of the weights (float64), of the first so many features."""
        values: Float64 = self.parameter.detach().to("cpu", torch.float64, copy=True).numpy()
        return values

    def set(self, names: Sequence[str], values: Sequence[float] | Float64) -> None:
        """Set weights by name; names that are new become sparse features."""
        ids = torch.from_numpy(self.features.intern(names)).long()
        self.grow()
        new = torch.as_tensor(values, dtype=self.parameter.dtype)
        self.parameter.data[ids.to(self.parameter.device)] = new.to(self.parameter.device)

    def _map_from(self, features: Vocabulary) -> FeatureMap:
        """Return the map of somebody's vocabulary to the own one; those of the last are kept."""
        # A map holds its vocabulary, so nothing else gets that number.
        found = self._maps.get(id(features))
        if found is None:
            while len(self._maps) >= self.readers:
                del self._maps[next(iter(self._maps))]
            found = self._maps[id(features)] = FeatureMap(features, self.features)
        return found
