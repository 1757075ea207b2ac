"""What tuners ask of an optimizer."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class LazyOptimizer(Protocol):
    """A `torch.optim.Optimizer` that may put off updates of coordinates nobody looks at.

    Any other becomes one by `torchtune_smt.optim.adapted`.
    """

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters and settings."""
        ...

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradient."""
        ...

    def step(self) -> Any:
        """Take one step along the sparse gradient."""
        ...

    def catch_up(self, indices: Tensor) -> None:
        """Bring some coordinates (int64 tensor) of the parameter up to date."""
        ...

    def flush(self) -> None:
        """Bring all coordinates up to date; O(D)."""
        ...

    def end_epoch(self) -> None:
        """Learn that an epoch is over, for what depends on epochs."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that later steps depend on: numbers, strings and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; raise ValueError or KeyError if it does not fit."""
        ...
