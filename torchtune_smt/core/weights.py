"""W: the weights of all features known so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.vocabulary import Vocabulary


class Readable(Protocol):
    """Weights as far as losses need them; see `Weights`."""

    parameter: torch.nn.Parameter
    before_read: Callable[[torch.Tensor], None] | None

    def grow(self) -> None:
        """Make the parameter as long as there are features."""
        ...


class Weights:
    """The weights, one a feature, as a parameter that grows with the feature vocabulary.

    Parameters
    ----------
    dense : sequence of str
        Names of the dense (default) features; they get the first ids.
    dtype, device : optional
        Of the parameter; float64 on the CPU.

    Attributes
    ----------
    features : Vocabulary
        Names of the features.
    parameter : torch.nn.Parameter [D]
        The weights. After features were added, `grow` makes it as long as `features`.
    n_dense : int
        Ids below it are dense features.
    before_read : callable, optional
        Called with the ids (int64 tensor) before weights are read: an optimizer that puts off
        updates brings these coordinates up to date in it, so nobody sees a stale weight.
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
        self._storage = torch.zeros(max(self.n_dense, 16), dtype=dtype, device=device)
        self.parameter = torch.nn.Parameter(self._storage[: self.n_dense])
        self.before_read: Callable[[torch.Tensor], None] | None = None

    def __len__(self) -> int:
        return self.parameter.numel()

    def grow(self) -> None:
        """Make the parameter as long as the feature vocabulary; new weights are 0."""
        length = len(self.features)
        if length == len(self):
            return
        if length > self._storage.numel():
            # A quarter more each time keeps the cost of growing constant per feature.
            room = max(length, self._storage.numel() * 5 // 4)
            larger = self._storage.new_zeros(room)
            larger[: len(self)] = self.parameter.detach()
            self._storage = larger
        self.parameter.data = self._storage[:length]

    def copy(self) -> Weights:
        """Return the weights as they are, over a vocabulary of their own that may grow otherwise.

        Nothing must be put off.
        """
        result = Weights(dtype=self.parameter.dtype, device=self.parameter.device)
        result.features = Vocabulary.from_arrays(self.features.to_arrays())
        result.n_dense = self.n_dense
        result.grow()
        result.parameter.data[: len(self)] = self.parameter.detach()
        return result

    def read(self, ids: Int64) -> Float64:
        """Return the up-to-date weights (float64) of some features, by their ids (int64)."""
        self.grow()
        index = torch.from_numpy(ids).to(self.parameter.device)
        if self.before_read is not None:
            self.before_read(index)
        chosen = self.parameter.detach()[index]
        result: Float64 = chosen.to("cpu", torch.float64).numpy()
        return result

    def set(self, names: Sequence[str], values: Sequence[float] | Float64) -> None:
        """Set weights by name; names that are new become sparse features."""
        ids = torch.from_numpy(self.features.intern(names)).long()
        self.grow()
        new = torch.as_tensor(values, dtype=self.parameter.dtype)
        self.parameter.data[ids.to(self.parameter.device)] = new.to(self.parameter.device)
