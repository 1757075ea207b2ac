"""What optimizers with sparse gradients, growing parameters and lazy updates share."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Final, overload

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import (
    Checked,
    above,
    accepting,
    check_arguments,
    declared,
    integer,
    one_of,
)
from torchtune_smt.core.archive import DAMAGED, well_formed
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows
from torchtune_smt.optim.row_kernels import RowSteps
from torchtune_smt.optim.state import (
    Group,
    Kept,
    State,
    Vector,
    by_itself,
    check_state,
    group_like,
    lengthened,
    new_state,
    plain,
    settings_like,
)
from torchtune_smt.regularizers.base import check_regularizer, elastic_strengths

# Coordinates that `flush` works on at a time, which bounds its memory.
CHUNK = 1 << 20
_KNOWN: ContextVar[bool] = ContextVar("_KNOWN", default=False)


@contextmanager
def with_updates_put_off() -> Iterator[None]:
    """Within, a state with updates that are put off is asked for on purpose, and nothing warns.

    Who saves it saves the parameter as it is beside it.
    """
    before = _KNOWN.set(True)
    try:
        yield
    finally:
        _KNOWN.reset(before)


SCHEDULES: Final = {"constant": 0.0, "inv_sqrt": 0.5, "1/t": 1.0}
SCHEDULE: Final = one_of(*SCHEDULES)


def rate(lr: float, schedule: str, t: int) -> float:
    """Return lr · t^-p, with p = 0, ½ or 1 for "constant", "inv_sqrt" or "1/t"; t from 1.

    Raises ValueError where the schedule is another one.
    """
    SCHEDULE.check("schedule", schedule)
    return float(lr / t ** SCHEDULES[schedule])


class SparseOptimizer(Checked, torch.optim.Optimizer):
    """Base of the optimizers: vectors as parameters, sparse gradients, lazy updates.

    What a step does to coordinates that it does not touch is put off, and taken before they are
    touched again, when they are asked for (`catch_up`), and for all by `flush`: the iterates are
    those of the eager method, and no step costs O(D). A parameter must be brought up to date
    before it is read, and flushed before anybody else changes it. It may grow between steps
    (``parameter.data = longer``); its state follows.

    A subclass says in `_kept` what numbers and vectors it keeps in the state of each parameter,
    and writes the other methods that raise NotImplementedError here.

    Parameters
    ----------
    params : iterable of tensors or param groups
        Vectors.
    defaults : dict
        With lr, regularizer and unregularized, at least.
    """

    accepts = accepting(lr=above(0), unregularized=integer(0))
    # Members of a group that updates depend on which are put off: what was put off is taken
    # with the old ones when they change.
    settings: ClassVar[tuple[str, ...]] = ("regularizer", "unregularized")

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        # The settings in force, by parameter.
        self._pending: dict[Tensor, Group] = {}
        # Coordinates that a subclass need not look for again, by parameter. They follow from
        # weights and state, and are not part of it: where one is loaded they are forgotten.
        self._places: dict[Tensor, Tensor] = {}
        self._behind = False
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy, or a pickle, is made of."""
        self._warn("copied")
        return {**super().__getstate__(), "_pending": self._pending, "_behind": self._behind}

    def __repr__(self) -> str:
        """Return the settings."""
        self._warn("shown")
        return super().__repr__()

    def _warn(self, what: str) -> None:
        """Warn where weights are not what the steps so far have made of them."""
        if self._behind and not _KNOWN.get():
            warnings.warn(
                f"{self._name} is {what} while updates of weights are put off, and the parameter "
                "by itself is out of date: call flush() before (or catch_up for the weights that "
                "are read)",
                stacklevel=3,
            )

    def _note_put_off(self) -> None:
        self._behind = any(map(self.puts_off, self.param_groups))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy."""
        super().__setstate__(state)
        self._places = {}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; it may set each argument of the class for itself."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for parameter in group["params"]:
                if parameter.dim() != 1 or not parameter.is_floating_point():
                    raise ValueError(
                        f"{self._name} takes one-dimensional floating-point parameters, not one of "
                        f"shape {tuple(parameter.shape)} and {parameter.dtype}"
                    )
            self._check_settings(group)
            if isinstance(group["lr"], int):
                # A schedule makes fractions of it, and a state says of what kind it is.
                group["lr"] = float(group["lr"])
        except Exception:
            # What its settings are is known once the class's own have been added.
            self.param_groups.pop()
            raise

    def _check_settings(self, group: Group, *, resumed: bool = False) -> None:
        """Raise ValueError where arguments of a group are out of range or do not go together."""
        # Schedules of torch begin at 0, and end there.
        begun = {"lr"} if resumed and group["lr"] == 0 else set[str]()
        check_arguments(type(self), {name: group[name] for name in group.keys() - begun})
        if group["regularizer"] is not None:
            check_regularizer(group["regularizer"])
        self._check_group(group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step on all parameters that have a gradient (it may be empty, but sparse).

        Raises
        ------
        TypeError, DivergenceError, ValueError
            A gradient is dense, or not finite, or the learning rate has become negative or not
            finite; no parameter has been changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [
            (group, parameter, *sparse_gradient(parameter, self._name))
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for group, *_ in work:
            _check_rate(group)
        for group, parameter, indices, gradient in work:
            state = self._prepared(group, parameter)
            self._update(group, parameter, state, indices, gradient)
        self._note_put_off()
        return loss

    @torch.no_grad()
    def catch_up(self, indices: Tensor, parameter: Tensor | None = None) -> None:
        """Bring some coordinates of a parameter up to date.

        Parameters
        ----------
        indices : int64 tensor
            Repeated ones do no harm.
        parameter : tensor, optional
            May be left out where there is only one.
        """
        group, parameter = self._find(parameter)
        if parameter not in self.state:
            return
        if declared(self, "puts_off", "_catch_up") and not self.puts_off(group):
            return
        state = self._prepared(group, parameter)
        indices = indices[self._moving(parameter, state).index_select(0, indices) != 0]
        self._catch_up(self._pending[parameter], parameter, state, indices)

    @torch.no_grad()
    def flush(self) -> None:
        """Bring all coordinates of all parameters up to date; O(D)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.state:
                    self._flush(group, parameter, self._prepared(group, parameter))
        self._behind = False

    def end_epoch(self) -> None:
        """Learn that an epoch is over; only optimizers that average over epochs care."""

    @torch.no_grad()
    def step_rows(
        self,
        rows: Rows,
        slope_kind: int,
        parameter: Tensor | None = None,
        order: Int64 | None = None,
    ) -> Float64:
        """Take a step on each of some rows of features in turn, in a compiled loop.

        The same as `step` along -slope(z) · row for each row, with the margin z = W·row under the
        weights that the row before has left.

        Parameters
        ----------
        rows : Rows
            Their features need not ascend.
        slope_kind : int
            Of the loss; see `torchtune_smt.losses.slope_kernels`.
        parameter : tensor, optional
            May be left out where there is only one; `compiled` holds of it.
        order : int64 [steps], optional
            The row that each step takes; by default, all rows in turn.

        Returns
        -------
        float64 [steps]
            Margins.

        Raises
        ------
        ValueError
            `order` names a row that there is not, or a row has a feature without a weight.
        DivergenceError
            A margin, or a number that the optimizer keeps, is not finite; the steps before have
            been taken.
        """
        group, parameter = self._find(parameter)
        _check_rate(group)
        state = self._prepared(group, parameter)
        weight = parameter.detach().numpy()
        if order is None:
            order = np.arange(len(rows))
        elif order.size and not 0 <= order.min() <= order.max() < len(rows):
            raise ValueError(
                f"order goes from row {order.min()} to row {order.max()}, and there are "
                f"{len(rows)} rows"
            )
        least, largest = rows.limits
        if least < 0 or largest >= weight.size:
            raise ValueError(
                f"rows have features {least} to {largest}, and there are {weight.size} weights"
            )
        margins = np.zeros(order.size)
        done = 0
        steps = RowSteps(rows.begin, rows.feature, rows.value, order, slope_kind, margins)
        while done < margins.size:
            first, done = done, self._update_rows(group, weight, state, steps, done)
            state["step"] += done - first
            if done < margins.size and not -float("inf") < margins[done] < float("inf"):
                raise DivergenceError(
                    f"the margin of pair {order[done]} is {margins[done]}: lower the "
                    "learning rate, and check the feature values of the k-best lists"
                )
            self._after_rows(group, parameter, state)
        self._note_put_off()
        return margins

    def compiled(self, parameter: Tensor | None = None) -> bool:
        """Say whether `step_rows` can work on a parameter: float64 on the CPU, with known steps."""
        group, parameter = self._find(parameter)
        return (
            self._rows_are_steps()
            and parameter.dtype == torch.float64
            and parameter.device.type == "cpu"
            and elastic_strengths(group["regularizer"]) is not None
        )

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state: plain numbers, strings and tensors.

        Updates that were put off stay put off, of which a UserWarning tells: save the parameter as
        it is, too, or call `flush` before.
        """
        self._warn("saved")
        result = super().state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        state = {}
        for key, entry in result["state"].items():
            if not entry:
                # Somebody has looked it up, which leaves an empty one.
                continue
            pending = self._pending[parameters[key]]
            state[key] = {
                **{name: v.clone() if torch.is_tensor(v) else v for name, v in entry.items()},
                "pending": {name: plain(value) for name, value in pending.items()},
            }
        groups = [
            {name: by_itself(value) for name, value in group.items() if name != "regularizer"}
            for group in result["param_groups"]
        ]
        return {"state": state, "param_groups": groups, "optimizer": self._name}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave.

        The regulariser is never made from a file: this optimizer must have been built with
        the one that was in use.

        Raises
        ------
        ValueError
            The state is of another optimizer or regulariser, longer than its parameter, or not
            whole.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        with well_formed():
            if state_dict.get("optimizer") != self._name:
                raise ValueError(
                    f"the saved state is of the optimizer {state_dict.get('optimizer')}, and this "
                    f"is {self._name}: resume with the same"
                )
            groups = self._restored_groups(state_dict["param_groups"])
            places = [(group, p) for group in groups for p in group["params"]]
            saved = dict(state_dict["state"])
            if not saved.keys() <= set(range(len(places))):
                raise ValueError(f"{DAMAGED}: it is of other parameters")
            restored = {
                places[key][1]: self._restored(entry, *places[key]) for key, entry in saved.items()
            }
        # All has been looked at: from here on nothing fails.
        for group, new in zip(self.param_groups, groups, strict=True):
            group.update(new)
        self._pending.clear()
        self._places.clear()
        self.state.clear()
        for parameter, (pending, state) in restored.items():
            self._pending[parameter] = pending
            self.state[parameter] = state
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _restored_groups(self, saved: list[Group]) -> list[Group]:
        """Return the parameter groups with the saved settings, but for the regulariser."""
        # As torch numbers them; to ask it would run the hooks of whoever saves a state.
        numbers = itertools.count()
        own = [
            {**group, "params": [next(numbers) for _ in group["params"]]}
            for group in self.param_groups
        ]
        if len(saved) != len(own):
            raise ValueError(f"{DAMAGED}: it has other groups of parameters")
        # The last is what torch adds to a copy's.
        needed = {"params", *self.defaults} - {"regularizer", "differentiable"}
        groups = []
        for group, named, new in zip(self.param_groups, own, saved, strict=True):
            settings = group_like(new, named, needed)
            groups.append({**group, **settings, "params": group["params"]})
            self._check_settings(groups[-1], resumed=True)
        return groups

    def _restored(self, entry: State, group: Group, parameter: Tensor) -> tuple[Group, State]:
        """Return the pending settings and the state of a parameter, if they can be its own.

        Raises
        ------
        ValueError, KeyError, TypeError
            They cannot.
        """
        self._check_state(entry, group, parameter)
        own = {name: by_itself(group[name]) for name in self.settings if name != "regularizer"}
        chosen = settings_like({name: entry["pending"][name] for name in own}, own)
        pending = {name: {**group, **chosen}[name] for name in self.settings}
        self._check_settings({**group, **pending}, resumed=True)
        state = {
            name: value.to(parameter.device, copy=True) if torch.is_tensor(value) else value
            for name, value in entry.items()
            if name != "pending"
        }
        return pending, state

    # What subclasses write.

    def _check_group(self, group: Group) -> None:
        """Raise ValueError where arguments are out of range or do not go together."""
        raise NotImplementedError

    def _kept(self, group: Group) -> Kept:
        """Return what is kept of a parameter, by its name in the state."""
        raise NotImplementedError

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        """Take a step; the coordinates `indices` may be out of date."""
        raise NotImplementedError

    def puts_off(self, group: Group) -> bool:
        """Say whether weights of a group can be out of date."""
        return True

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        """Bring coordinates up to date, and mark them so."""
        raise NotImplementedError

    def _moving(self, parameter: Tensor, state: State) -> Tensor:
        """Return a vector that is 0 where a weight is 0 and stays so until its next gradient."""
        return parameter

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        """Take steps of `step_rows` from `first` on, and return the one it stopped before.

        The number of steps in the state is not changed.
        """
        raise NotImplementedError

    def _rows_are_steps(self) -> bool:
        """Say whether `_update_rows` does what `step` does, which a subclass may have changed."""
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            # They are to be called at each step.
            return False
        steps = ("step", "_update", "catch_up", "_catch_up")
        return declared(self, "_update_rows", *steps) is not None

    def _after_rows(self, group: Group, parameter: Tensor, state: State) -> None:
        """Do what is to be done when `_update_rows` has stopped."""

    # The rest is for subclasses to use.

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _prepared(self, group: Group, parameter: Tensor) -> State:
        """Return the state of a parameter, made or lengthened, with its settings in force."""
        state: State = self.state[parameter]
        if not state:
            state.update(new_state(self._kept(group), parameter))
        settings = {name: by_itself(group[name]) for name in self.settings}
        if self._pending.setdefault(parameter, settings) != settings:
            self._check_settings(group, resumed=True)
            self._lengthen(group, parameter, state)
            self._settle(group, parameter, state)
            self._pending[parameter] = settings
            self._changed(group, parameter, state)
        self._lengthen(group, parameter, state)
        return state

    def _settle(self, group: Group, parameter: Tensor, state: State) -> None:
        """Take all that was put off, with the settings that have been in force."""
        self._flush(group, parameter, state)

    def _changed(self, group: Group, parameter: Tensor, state: State) -> None:
        """Adapt a state, which is up to date, to new settings."""

    def _in_force(self, group: Group, parameter: Tensor) -> Kept:
        """Return what is kept of a parameter with the settings that its state was made with."""
        return self._kept({**group, **self._pending[parameter]})

    def _lengthen(self, group: Group, parameter: Tensor, state: State) -> None:
        length = parameter.numel()
        for name, value in state.items():
            if torch.is_tensor(value) and value.numel() < length:
                kept = self._in_force(group, parameter)[name]
                assert isinstance(kept, Vector)
                state[name] = lengthened(value, length, kept.value(state))

    def _flush(self, group: Group, parameter: Tensor, state: State) -> None:
        for begin in range(0, parameter.numel(), CHUNK):
            moving = self._moving(parameter, state)[begin : begin + CHUNK]
            indices = moving.nonzero()[:, 0] + begin
            self._catch_up(self._pending[parameter], parameter, state, indices)
        for name, kept in self._in_force(group, parameter).items():
            if isinstance(kept, Vector) and kept.mark:
                state[name].fill_(kept.value(state))

    def _find(self, parameter: Tensor | None) -> tuple[Group, Tensor]:
        """Return a parameter and its group."""
        found = [
            (group, candidate)
            for group in self.param_groups
            for candidate in group["params"]
            if parameter is None or candidate is parameter
        ]
        if not found:
            raise ValueError("this parameter is not one of the optimizer's")
        if len(found) > 1:
            raise ValueError(f"say which of the {len(found)} parameters is meant")
        return found[0]

    def _check_state(self, entry: State, group: Group, parameter: Tensor) -> None:
        """Raise ValueError if the saved state of a parameter cannot be its state."""
        expected = self._kept(group)
        missing = ({*expected, "pending"} - entry.keys()) | (
            {*self.settings} - entry.get("pending", {}).keys()
        )
        if missing:
            raise ValueError(f"the saved state lacks {sorted(missing)}: it is not {self._name}'s")
        saved = entry["pending"].get("regularizer")
        if "regularizer" in self.settings and saved != plain(group["regularizer"]):
            raise ValueError(
                f"the saved state is of regularizer {saved}, and this optimizer has "
                f"{group['regularizer']!r}: build it with the same"
            )
        if len(entry) > len(expected) + 1:
            raise ValueError(f"{DAMAGED}: it has more than {self._name} keeps")
        check_state(entry, expected, parameter)


class AveragingOptimizer(SparseOptimizer):
    """Base of the optimizers with an argument `average`, and a sum of weights in their state.

    A subclass says in `_total` what the sum is, and in its state "step" and "epochs" (where
    `average` is "epoch") how many vectors have entered it.
    """

    accepts = accepting(average=one_of("epoch", "step", "none"))
    settings: ClassVar[tuple[str, ...]] = (*SparseOptimizer.settings, "average")

    @torch.no_grad()
    def averaged(self, parameter: Tensor | None = None) -> Tensor:
        """Return the averaged weights; O(D).

        Parameters
        ----------
        parameter : tensor, optional
            May be left out where there is only one.

        Returns
        -------
        tensor [D]
            The weights as they are, before the first epoch has ended or the first step is taken.

        Raises
        ------
        ValueError
            `average` is "none".
        """
        group, parameter = self._find(parameter)
        if group["average"] == "none":
            raise ValueError(
                f"nothing was averaged: build {self._name} with average=epoch or average=step"
            )
        state = self._prepared(group, parameter)
        clock = self._clock(group, state)
        if clock == 0:
            return parameter.detach().clone()
        return (self._total(group, parameter, state) / clock).to(parameter.dtype)

    def _clock(self, group: Group, state: State) -> int:
        """Return how many weight vectors have entered the average."""
        clock: int = state["epochs" if group["average"] == "epoch" else "step"]
        return clock

    def _total(self, group: Group, parameter: Tensor, state: State) -> Tensor:
        """Return the sum of these vectors, in float64."""
        raise NotImplementedError


def _check_rate(group: Group) -> None:
    """Raise ValueError if the learning rate, which schedules change, is none."""
    if not 0 <= group["lr"] < float("inf"):
        raise ValueError(f"lr must be finite, 0 or more, not {group['lr']}")


def sparse_gradient(parameter: Tensor, optimizer: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of a parameter as (indices, values), indices ascending and unique.

    Parameters
    ----------
    parameter : tensor [D]
        With a gradient.
    optimizer : str
        Its name, for the error.

    Raises
    ------
    TypeError
        The gradient is dense.
    DivergenceError
        A value is NaN or infinite; the error names the feature's id.
    """
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        raise TypeError(
            f"{optimizer} takes sparse gradients and got a dense one: compute scores with "
            "torchtune_smt.core.scoring, whose gradients are sparse"
        )
    indices, values = gradient._indices()[0], gradient._values()
    # Autograd forgets that a gradient is coalesced; to look costs a tenth of doing it again.
    if not gradient.is_coalesced() and not bool((indices[1:] > indices[:-1]).all()):
        gradient = gradient.coalesce()
        indices, values = gradient.indices()[0], gradient.values()
    finite = values.isfinite()
    if not finite.all():
        bad = int(finite.logical_not().nonzero()[0])
        raise DivergenceError(
            f"the gradient of feature id {int(indices[bad])} is {float(values[bad])}: lower the "
            "learning rate, and check the feature values and gains of the k-best lists"
        )
    return indices, values
