"""Optimizers of torch and of users: as tuners use them, and tried out on a few numbers."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from torchtune_smt.core.archive import DAMAGED, well_formed
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.core.state import packed, unpacked, vector
from torchtune_smt.core.weights import Weights
from torchtune_smt.optim.sparse import SparseOptimizer, rate, row_gradient, with_updates_put_off
from torchtune_smt.optim.state import Group, State, check_same, lengthened, plain, settings_like

_TORCHS: Final = torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam
# What these keep of each coordinate, and the entry of their groups that a new one begins with.
_VECTORS: Final[dict[str, str | None]] = {
    "sum": "initial_accumulator_value",
    "momentum_buffer": None,
    "exp_avg": None,
    "exp_avg_sq": None,
}


class Adapter:
    """A `torch.optim.Optimizer` with all that tuners ask of one: what `SparseOptimizer` has.

    One that puts nothing off needs no more than `step`; others have `catch_up` and `flush`, too.
    It may have `end_epoch` and `averaged`. It gets gradients that are finite and coalesced. The
    state of torch's own optimizers grows with the parameter; one of a user's own class lengthens
    its state itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer: Any = optimizer
        self._name = type(optimizer).__name__
        lacks = [name for name in ("catch_up", "flush") if not hasattr(optimizer, name)]
        if len(lacks) == 1:
            raise TypeError(
                f"{self._name} has no {lacks[0]}: an optimizer that puts updates off needs both "
                "catch_up(indices), which brings some weights up to date, and flush(), which "
                "brings all; one that puts nothing off needs neither"
            )
        self._puts_off = not lacks
        self._vectors = _VECTORS if isinstance(optimizer, _TORCHS) else {}

    @property
    def param_groups(self) -> list[Group]:
        """Those of the optimizer."""
        groups: list[Group] = self._optimizer.param_groups
        return groups

    @torch.no_grad()
    def step(self) -> None:
        """Take one step along the sparse gradient; DivergenceError, before it: it is not finite."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    indices, values = row_gradient(parameter)
                    parameter.grad = sparse_vector(indices, values, parameter.numel())
                    self._lengthen(group, parameter)
        # torch warns, once, where nobody has said whether sparse tensors are to be checked.
        with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
            self._optimizer.step()

    def catch_up(self, indices: Tensor) -> None:
        """Bring some coordinates (int64 tensor) of the parameter up to date."""
        if self._puts_off:
            self._optimizer.catch_up(indices)

    def flush(self) -> None:
        """Bring all coordinates up to date; O(D)."""
        if self._puts_off:
            self._optimizer.flush()

    def end_epoch(self) -> None:
        """Learn that an epoch is over, if the optimizer wants to know."""
        if hasattr(self._optimizer, "end_epoch"):
            self._optimizer.end_epoch()

    @property
    def averaged(self) -> Callable[[], Tensor]:
        """The optimizer's method, if it has one: what it averages."""
        method: Callable[[], Tensor] = self._optimizer.averaged
        return method

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's, where settings that are no data (a regulariser) are named."""
        result: dict[str, Any] = self._optimizer.state_dict()
        groups = [
            {name: value if _is_data(value) else plain(value) for name, value in group.items()}
            for group in result["param_groups"]
        ]
        return {**result, "param_groups": groups, "optimizer": self._name}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; ValueError: it is of another optimizer or regulariser."""
        with well_formed():
            check_same("optimizer", state_dict.get("optimizer"), self._name)
            self._load(state_dict)

    def _load(self, state_dict: dict[str, Any]) -> None:
        objects = [
            {name: value for name, value in group.items() if not _is_data(value)}
            for group in self.param_groups
        ]
        groups = []
        every = zip(state_dict["param_groups"], self.param_groups, objects, strict=True)
        for saved, group, own in every:
            for name, value in own.items():
                check_same(name, saved.get(name), value)
            groups.append(settings_like(saved, group))
        parameters = [p for group in self.param_groups for p in group["params"]]
        saved_state: dict[int, State] = state_dict["state"]
        for key, entry in saved_state.items():
            vectors = [entry[name] for name in self._vectors.keys() & entry.keys()]
            if any(v is not None and len(v) > len(parameters[key]) for v in vectors):
                raise ValueError(f"{DAMAGED}: it is of more weights than there are")
        self._optimizer.load_state_dict({"state": saved_state, "param_groups": groups})
        for group, own in zip(self.param_groups, objects, strict=True):
            group.update(own)
        # torch has turned counts and the like into numbers of the parameter's dtype.
        for key, entry in saved_state.items():
            loaded = self._optimizer.state[parameters[key]]
            for name, value in entry.items():
                if torch.is_tensor(value) and torch.is_tensor(loaded.get(name)):
                    loaded[name] = value.to(loaded[name].device, copy=True)

    def _lengthen(self, group: Group, parameter: Tensor) -> None:
        """Make the vectors of torch's own state as long as the parameter."""
        state = self._optimizer.state[parameter]
        length = parameter.numel()
        for name, start in self._vectors.items():
            value = state.get(name)
            if value is None:
                continue
            if value.is_sparse:
                # Sums of sparse vectors are left uncoalesced, with entries that become ever more.
                value = value.coalesce()
                state[name] = sparse_vector(value.indices()[0], value.values(), length)
            elif value.numel() < length:
                state[name] = lengthened(value, length, group[start] if start else 0.0)


class Shifted:
    """An optimizer of what weights differ by from those that they begin at.

    With w = start + v it takes its steps on v (`change`), and a regulariser, or weight decay, pulls
    v to 0, and so w to the start. Features that come later start at 0. Weights are put together
    where they are asked for: `catch_up`, `flush`.

    optimizer: of ``weights.parameter``, which becomes v; no step has been taken.
    weights: at the start; they get another parameter.
    """

    def __init__(
        self, optimizer: SparseOptimizer | Adapter | torch.optim.Optimizer, weights: Weights
    ) -> None:
        self.inner = adapted(optimizer)
        assert not isinstance(self.inner, Shifted)
        self.change = weights.parameter
        self._weights = weights
        self._start = self.change.detach().clone()
        weights.parameter = torch.nn.Parameter(self._start.clone())
        self.change.data = torch.zeros_like(self._start)

    @property
    def param_groups(self) -> list[Group]:
        """Those of the optimizer."""
        return self.inner.param_groups

    def step(self) -> None:
        """Take one step along the gradient of the weights; see the optimizer's."""
        self._grow()
        self.change.grad = self._weights.parameter.grad
        try:
            self.inner.step()
        finally:
            self.change.grad = None

    @torch.no_grad()
    def catch_up(self, indices: Tensor) -> None:
        """Bring some weights up to date."""
        self._grow()
        self.inner.catch_up(indices)
        values = self.change.index_select(0, indices)
        known = indices < len(self._start)
        values[known] += self._start[indices[known]]
        self._weights.parameter[indices] = values

    @torch.no_grad()
    def flush(self) -> None:
        """Bring all weights up to date; O(D)."""
        self._grow()
        self.inner.flush()
        self._weights.parameter.copy_(self._put_together(self.change))

    def end_epoch(self) -> None:
        """Learn that an epoch is over."""
        self.inner.end_epoch()

    def averaged(self) -> Tensor:
        """Return the average of the weights."""
        self._grow()
        inner: Any = self.inner
        return self._put_together(inner.averaged())

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's, the start, and what weights differ by from it."""
        self._grow()
        change = self.change.detach().clone()
        return {"optimizer": self.inner.state_dict(), "start": self._start, "change": change}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        kind, length = self.change.dtype, len(self._weights)
        with well_formed():
            start, change = (vector(state_dict[name], kind, length) for name in ("start", "change"))
            inner = dict(state_dict["optimizer"])
        device = self.change.device
        self._start = start.to(device, copy=True)
        self.change.data = change.to(device, copy=True)
        self.inner.load_state_dict(inner)
        self._grow()

    def _grow(self) -> None:
        """Let v be as long as the weights."""
        length = len(self._weights)
        if length > len(self.change):
            self.change.data = lengthened(self.change.data, length, 0.0)

    def _put_together(self, change: Tensor) -> Tensor:
        result = change.detach().clone()
        result[: len(self._start)] += self._start
        return result


LazyOptimizer = SparseOptimizer | Adapter | Shifted
"""What tuners take steps with: it may put off updates of coordinates that nobody looks at."""


def adapted(optimizer: LazyOptimizer | torch.optim.Optimizer) -> LazyOptimizer:
    """Return an optimizer as tuners use it: those of this package as they are.

    Tuners bring up to date what they read, and some gradients come from workers that lag behind.
    """
    if isinstance(optimizer, SparseOptimizer):
        optimizer.delayed = True
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    return Adapter(optimizer)


def learning_rate(optimizer: LazyOptimizer) -> float:
    """Return the rate of the last step on the first parameter; NaN of an optimizer without one."""
    optimizer = optimizer.inner if isinstance(optimizer, Shifted) else optimizer
    group = optimizer.param_groups[0]
    lr = float(group.get("lr", "nan"))
    if not isinstance(optimizer, SparseOptimizer) or "schedule" not in group:
        return lr
    # To look one up in a state without it would leave an empty one there.
    step = optimizer.state.get(group["params"][0], {}).get("step", 0)
    return rate(lr, group["schedule"], max(step, 1))


def check_averages(optimizer: LazyOptimizer) -> None:
    """Raise ValueError if an optimizer has no average of the weights, before steps are taken."""
    optimizer = optimizer.inner if isinstance(optimizer, Shifted) else optimizer
    none = optimizer.param_groups[0].get("average") == "none"
    if none or not hasattr(optimizer, "averaged"):
        raise ValueError(
            "an average of the weights is wanted, and the optimizer keeps none: take FOBOS or SGD "
            "with average=epoch or average=step, or one of your own that has averaged()"
        )


def _is_data(value: Any) -> bool:
    """Say whether a checkpoint can hold a value."""
    if isinstance(value, dict):
        return all(map(_is_data, value)) and all(map(_is_data, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    return value is None or isinstance(value, int | float | str) or torch.is_tensor(value)


def check_optimizer(build: Callable[[list[Tensor]], object]) -> None:
    """Take some steps as tuners do, also with a state that was saved.

    build: returns a new optimizer of a list of parameters.

    Raises TypeError: it is no optimizer of torch, or lacks a method.
    Raises ValueError: it fails, or goes on with a saved state in another way than without.
    """
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    made = build([parameter])
    name = type(made).__name__
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"{name} is no torch.optim.Optimizer: derive it from that class")
    optimizer = adapted(made)
    with _trying(made, "take a step on a sparse gradient"):
        _step(optimizer, parameter, 2)
    with _trying(made, "take a step once there are more weights"):
        _step(optimizer, parameter, 3)
    with _trying(made, "be saved"), with_updates_put_off():
        # As it comes out of a checkpoint, from which no objects are made.
        tree, arrays = packed(optimizer.state_dict())
        copies = {part: array.copy() for part, array in arrays.items()}
        state = unpacked(json.loads(json.dumps(tree)), copies)
    weights = parameter.detach().clone()
    with _trying(made, "take a step once there are more weights"):
        _step(optimizer, parameter, 4)
    with _trying(made, "end an epoch"):
        optimizer.flush()
        optimizer.end_epoch()

    again = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    resumed = adapted(build([again]))  # type: ignore[arg-type]
    again.data = weights
    with _trying(made, "be resumed"):
        resumed.load_state_dict(state)
        _step(resumed, again, 4)
        resumed.flush()
    if not torch.allclose(parameter, again, rtol=0, atol=0, equal_nan=True):
        raise ValueError(
            f"{name} goes on in another way when it is resumed: keep all that its steps depend on "
            "in self.state[parameter], as numbers and tensors, or in the param group"
        )


def _step(optimizer: LazyOptimizer, parameter: torch.nn.Parameter, length: int) -> None:
    """Lengthen the parameter, and take a step that touches its first and its last coordinate."""
    longer = parameter.new_zeros(length)
    longer[: parameter.numel()] = parameter.detach()
    parameter.data = longer
    indices = torch.tensor([0, length - 1])
    optimizer.catch_up(indices)
    parameter.grad = sparse_vector(indices, parameter.new_tensor([1.0, -0.5]), length)
    optimizer.step()


@contextmanager
def _trying(optimizer: object, what: str) -> Iterator[None]:
    """Say in the error what an optimizer, of whatever class, cannot do, and where it failed."""
    try:
        yield
    except Exception as error:
        kind = type(optimizer)
        files = {inspect.getsourcefile(parent) for parent in kind.__mro__[:-1]}
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, " if frames else ""
        reason = str(error).partition("\n")[0] or "not written"
        raise ValueError(
            f"{kind.__name__} cannot {what} ({place}{type(error).__name__}: {reason})"
        ) from None
