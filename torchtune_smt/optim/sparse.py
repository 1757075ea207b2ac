"""What optimizers with sparse gradients, growing parameters and lazy updates share."""

from __future__ import annotations

import copy
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, Final, cast, overload

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import (
    SWITCH,
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
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.optim.attached import attach
from torchtune_smt.optim.faults import GRADIENT, STALE, Faults
from torchtune_smt.optim.row_kernels import RowSteps
from torchtune_smt.optim.state import (
    Group,
    Kept,
    State,
    Vector,
    by_itself,
    check_same,
    check_state,
    lengthened,
    new_state,
    nonzero_rows,
    plain,
    rows_of,
    saved_value,
    settings_like,
)
from torchtune_smt.regularizers.base import (
    check_regularizer,
    elastic_strengths,
    is_separable_by_rows,
)

# So many rows are brought up to date sooner than those are found that are not.
FEW = 2048
# Numbers that `flush` works on at a time, which bounds its memory.
CHUNK = 1 << 20
_KNOWN: ContextVar[bool] = ContextVar("_KNOWN", default=False)


@contextmanager
def with_updates_put_off() -> Iterator[None]:
    """Within, nothing warns of a state with updates put off: the parameter is saved beside it."""
    before = _KNOWN.set(True)
    try:
        yield
    finally:
        _KNOWN.reset(before)


def of_torch(method: Any) -> Callable[..., Any]:
    """Return a method of `torch.optim.Optimizer` without what hides it from torch's compiler.

    That decorator imports the compiler, which costs as much as torch itself; as long as nobody
    else has, there is nothing to hide from.
    """
    inner = getattr(method, "__wrapped__", None)
    if "torch._dynamo" in sys.modules or inner is None or inner.__module__ != _TORCH:
        return cast(Callable[..., Any], method)
    return partial(inner, method.__self__)


_TORCH: Final = torch.optim.Optimizer.__module__
SCHEDULES: Final = {"constant": 0.0, "inv_sqrt": 0.5, "1/t": 1.0}
SCHEDULE: Final = one_of(*SCHEDULES)


def rate(lr: float, schedule: str, t: int) -> float:
    """Return lr · t^-p, with p = 0, ½ or 1 for "constant", "inv_sqrt" or "1/t"; t from 1."""
    return float(lr / t ** SCHEDULES[schedule])


class SparseOptimizer(Checked, torch.optim.Optimizer):
    """Base of the optimizers: parameters of any shape, sparse gradients, lazy updates.

    A parameter has rows along its first dimension: embeddings, or the coordinates of a vector. A
    sparse gradient (COO with one sparse dimension, as of ``nn.Embedding(sparse=True)``) touches
    some of them. What a step does to the others is put off, and taken before they are touched
    again, when they are asked for (`catch_up`), and for all by `flush`: the iterates are those of
    the eager method, and no step costs O(D). A dense gradient touches all rows.

    Rows must be brought up to date before they are read, which `attach` sees to, and flushed
    before anybody else changes them. A step along a gradient that was taken at weights that were
    out of date raises, as does one after such weights were changed. A parameter may grow between
    steps (``parameter.data = longer``); its state follows.

    A subclass says in `_kept` what numbers and vectors it keeps of each parameter, and writes the
    other methods that raise NotImplementedError here, for parameters as `state.rows_of` has them.

    defaults: with lr, regularizer and unregularized, at least.
    lazy: False: nothing is put off, and each step costs O(D).
    maximize: whether steps go along the gradient, and not against it.
    wait: whether a step may wait for the device, to tell at once what is wrong, and where. None: on
        all but CUDA. A step that does not wait takes a gradient that is not finite, or of weights
        that were out of date, as one of zeros, and a later step, or `flush`, raises.

    As an attribute `delayed`: whether gradients may be of weights before the last steps, as of
    workers that lag behind: then nothing raises where rows were out of date when they were read.
    """

    accepts = accepting(
        lr=above(0),
        unregularized=integer(0),
        lazy=SWITCH,
        maximize=SWITCH,
        wait=SWITCH.or_null(),
    )
    delayed: bool = False
    # Members of a group that updates depend on which are put off: what was put off is taken
    # with the old ones when they change. Of these, some cannot change.
    settings: ClassVar[tuple[str, ...]] = ("regularizer", "unregularized")
    fixed: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        params: ParamsT,
        defaults: Group,
        *,
        lazy: bool = True,
        maximize: bool = False,
        wait: bool | None = None,
    ) -> None:
        check_arguments(type(self), {"wait": wait})
        self.wait = wait
        self._faults = Faults()
        # The settings in force, by parameter.
        self._pending: dict[Tensor, Group] = {}
        # Coordinates that a subclass need not look for again, by parameter. They follow from
        # weights and state, and are not part of it: where one is loaded they are forgotten.
        self._places: dict[Tensor, Tensor] = {}
        # What parameters whose rows may be out of date were when they were last looked at.
        self._behind: dict[Tensor, tuple[int, ...] | None] = {}
        # Sums of weights that were out of date when they were saved, until they are seen again.
        self._saved: dict[Tensor, int] = {}
        self._attached: set[Tensor] = set()
        super().__init__(params, {**defaults, "lazy": lazy, "maximize": maximize})

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy, or a pickle, is made of."""
        self._warn("copied")
        behind = dict.fromkeys(self._behind)
        kept = {"_pending": self._pending, "_behind": behind, "_saved": self._saved}
        return {**super().__getstate__(), **kept, "delayed": self.delayed, "wait": self.wait}

    def _warn(self, what: str) -> None:
        """Warn where weights are not what the steps so far have made of them."""
        if self._behind and not _KNOWN.get():
            warnings.warn(
                f"{self._name} is {what} while updates of weights are put off, and the parameter "
                "by itself is out of date: call flush() before (or catch_up for the weights that "
                "are read)",
                stacklevel=3,
            )

    def _note(self, group: Group, parameter: Tensor) -> None:
        """Note what a parameter is, some of whose rows may be out of date from now on."""
        # A subclass may have put off more since it was said what is.
        late = self._puts_off(group) or declared(self, "_puts_off", "_catch_up") is None
        if late or parameter in self._behind:
            self._behind[parameter] = identity(parameter)

    def _check_own(self, parameter: Tensor) -> None:
        """Raise an error if weights were changed while out of date, or since a state was saved."""
        if parameter in self._saved:
            if _sum_of_bits(parameter) != self._saved[parameter]:
                raise InputError(
                    f"a state of {self._name} was loaded that was saved while updates were put "
                    "off, and weights that are not those of then: load both, as they were saved"
                )
            del self._saved[parameter]
        known = self._behind.get(parameter)
        now = identity(parameter)
        if known is None or known == now:
            return
        if known[0] != now[0] or (known[1] != now[1] and known[2] >= now[2]):
            raise RuntimeError(
                "a parameter was changed, or exchanged for another one, while updates of it were "
                f"put off by {self._name}: call flush() before that"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy."""
        super().__setstate__(state)
        self._places = {}
        self._attached = set()
        self._faults = Faults()

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; it may set each argument of the class for itself."""
        of_torch(super().add_param_group)(param_group)
        group = self.param_groups.pop()
        self._check_settings(group)
        self.param_groups.append(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; see `torch.optim.Optimizer`."""
        of_torch(super().zero_grad)(set_to_none)

    def _check_settings(self, group: Group, *, resumed: bool = False) -> None:
        """Raise ValueError where arguments of a group are out of range or do not go together."""
        # Schedules of torch begin at 0, and end there.
        begun = {"lr"} if resumed and group["lr"] == 0 else set[str]()
        check_arguments(type(self), {name: group[name] for name in group.keys() - begun})
        regularizer = group["regularizer"]
        if regularizer is not None:
            check_regularizer(regularizer)
            for parameter in () if is_separable_by_rows(regularizer) else group["params"]:
                if parameter.dim() != 1:
                    raise ValueError(
                        f"{type(regularizer).__name__} is of a vector, not of a parameter of shape "
                        f"{tuple(parameter.shape)}"
                    )
        self._check_group(group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step on all parameters that have a gradient.

        Raises DivergenceError, ValueError, RuntimeError: a gradient is not finite, or its rows
            cannot be told; weights were out of date when they were read, or were changed while they
            were so. No step has been taken then, but by parameters before one whose sum of squares
            overflows. Where `wait` says so, some of this is of a step before.
        """
        if torch.compiler.is_compiling():
            result: float | None = _outside_of_graphs(self, closure)
            return result
        self._raise(wait=False)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [
            (group, parameter, *self._gradient(group, parameter))
            for group, parameter in self._pairs()
            if parameter.grad is not None
        ]
        stale = False
        for group, parameter, indices, _ in work:
            # After `flush`, weights are what they are, of whomever.
            if parameter in self._behind and (state := self.state[parameter]):
                # Settings that are new bring all up to date, and hide what was read before.
                self._check_own(parameter)
                before = {**group, **self._pending[parameter]}
                self._lengthen(before, parameter, state)
                stale |= self._bring(before, parameter, state, indices)
        if stale:
            raise RuntimeError(
                f"a gradient is of weights that were out of date when they were read: {self._cure}"
            )
        ready = []
        for group, parameter, indices, gradient in work:
            state = self._prepared(group, parameter)
            settings, weight = {**group, **self._pending[parameter]}, rows_of(parameter)
            gradient = -gradient if group["maximize"] else gradient
            if self._later(parameter) and not self._looks(group, parameter):
                gradient = self._faults.sound(gradient)
            ready.append((settings, weight, state, indices, gradient))
        for arguments, (group, parameter, *_) in zip(ready, work, strict=True):
            self._update(*arguments)
            if group["lazy"] and parameter.grad is not None and parameter.grad.is_sparse:
                self._note(group, parameter)
            else:
                self._flush(*arguments[:3])
                self._behind.pop(parameter, None)
        self._faults.send()
        return loss

    @property
    def _cure(self) -> str:
        return (
            f"{self._name} puts updates off; call attach(module) once (again after "
            "add_param_group), or catch_up(rows) before each forward pass, or flush() where "
            "weights are read out of their own module, or let it be lazy=False; if steps were "
            "taken between forward pass and step on purpose, set delayed = True"
        )

    def _gradient(self, group: Group, parameter: Tensor) -> tuple[Tensor, Tensor]:
        _check_rate(group)
        later = self._later(parameter)
        looked = later is None or not self._looks(group, parameter)
        return row_gradient(parameter, later, looked=looked)

    def _later(self, parameter: Tensor) -> Faults | None:
        """Return where faults are noted if a step on a parameter does not wait; else None."""
        wait = not parameter.is_cuda if self.wait is None else self.wait
        return None if wait else self._faults

    def _raise(self, *, wait: bool) -> None:
        """Raise what devices have found in steps before."""
        found = self._faults.known(wait=wait)
        if found is not None:
            kind, text = found
            cure = self._cure if kind is RuntimeError else "lower the learning rate"
            raise kind(
                f"{text}, and no gradient has been taken since: {cure}; with wait=True the step "
                "itself raises, and says where"
            )

    @torch.no_grad()
    def catch_up(self, indices: Tensor, parameter: Tensor | None = None) -> None:
        """Bring rows (integers, no mask) up to date; by default those of the only parameter."""
        group, parameter = self._find(parameter)
        indices = torch.as_tensor(indices)
        if indices.numel() and (indices.is_floating_point() or indices.dtype == torch.bool):
            raise TypeError(f"rows are named by integers, not by a tensor of {indices.dtype}")
        if parameter not in self.state or parameter not in self._behind:
            return
        if torch.is_inference_mode_enabled():
            # Its tensors could not be changed any more.
            with torch.inference_mode(False):
                self.catch_up(indices, parameter)
            return
        # For autograd this is no change: nobody has read these rows yet.
        state, weight = self._prepared(group, parameter), rows_of(parameter.data)
        indices = indices.reshape(-1).to(weight.device, torch.int64)
        if indices.numel() > FEW and not self._later(weight):
            indices = indices[self._late(weight, state, indices)]
        if indices.numel():
            self._catch_up({**group, **self._pending[parameter]}, weight, state, indices)

    def attach(self, module: torch.nn.Module) -> None:
        """Bring up to date what a module, or one within it, reads in its forward pass.

        Of `nn.Embedding`, `nn.EmbeddingBag`, and modules with a method ``rows_read`` (which gets
        the arguments of `forward` and returns an integer tensor), these are the rows that are
        named; of others, all that they have. All is flushed before ``state_dict``, ``train`` and
        ``eval`` of the module, and before it is copied or pickled; copies are not attached. The
        class of these modules becomes one of the same name, derived from it. ValueError: none has
        a parameter of this optimizer, or an embedding has `max_norm`.
        """
        parameters = [parameter for _, parameter in self._pairs()]
        attach(self, module, parameters)
        self._attached.update(set(parameters) & set(module.parameters()))

    @torch.inference_mode(False)
    @torch.no_grad()
    def flush(self) -> None:
        """Bring all rows of all parameters up to date; O(D)."""
        for group, parameter in self._pairs():
            if parameter in self.state:
                state = self._prepared(group, parameter)
                if parameter in self._behind:
                    settings = {**group, **self._pending[parameter]}
                    self._flush(settings, rows_of(parameter), state)
                # From now on weights may be changed by others.
                self._places.pop(parameter, None)
        self._behind.clear()
        self._raise(wait=True)

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
        weights that the row before has left, of a parameter that is `compiled`.

        slope_kind: of the loss; see `torchtune_smt.losses.slope_kernels`.
        order (int64 [steps]): the row that each step takes; by default, all rows in turn.

        Returns float64 [steps]: margins. DivergenceError: one, or a number that the optimizer
        keeps, is not finite; the steps before have been taken.
        """
        group, parameter = self._find(parameter)
        _check_rate(group)
        state = self._prepared(group, parameter)
        weight = parameter.detach().numpy()
        if order is None:
            order = np.arange(len(rows))
        least, largest = rows.limits
        known = not order.size or 0 <= order.min() <= order.max() < len(rows)
        if not known or least < 0 or largest >= weight.size:
            raise ValueError(
                f"`order`, or a row, names what there is not: there are {len(rows)} rows, with "
                f"features {least} to {largest}, and {weight.size} weights"
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
            self._note(group, parameter)
        return margins

    def compiled(self, parameter: Tensor | None = None) -> bool:
        """Say whether `step_rows` can work on a parameter: float64 on the CPU, with known steps."""
        group, parameter = self._find(parameter)
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            # They are to be called at each step.
            return False
        if parameter.dtype != torch.float64 or parameter.device.type != "cpu":
            return False
        if parameter.dim() != 1 or group["maximize"] or not group["lazy"]:
            return False
        # What a loop does is what `step` does, unless a subclass has changed that.
        steps = ("step", "_update", "catch_up", "_catch_up")
        return declared(self, "_update_rows", *steps) is not None and self._has_loop(group)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state: plain numbers, strings and tensors.

        Updates that were put off stay put off, of which a UserWarning tells: save the parameter as
        it is, too, or call `flush` before. With an attached module all is flushed.
        """
        if self._attached and not _KNOWN.get():
            self.flush()
        self._raise(wait=True)
        self._warn("saved")
        result = of_torch(super().state_dict)()
        parameters = [parameter for _, parameter in self._pairs()]
        state = {}
        for key, entry in result["state"].items():
            if not entry:
                # Somebody has looked it up, which leaves an empty one.
                continue
            pending = self._pending[parameters[key]]
            state[key] = {
                **{name: saved_value(value) for name, value in entry.items()},
                "pending": {name: plain(value) for name, value in pending.items()},
            }
            if parameters[key] in self._behind:
                # Who has asked for updates that are put off knows of which weights they are.
                state[key]["weights"] = None if _KNOWN.get() else _sum_of_bits(parameters[key])
        groups = [
            {name: by_itself(value) for name, value in group.items() if name != "regularizer"}
            for group in result["param_groups"]
        ]
        return {**result, "state": state, "param_groups": groups, "optimizer": self._name}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave.

        The regulariser is never made from a file: this optimizer must have been built with the one
        that was in use. ValueError: it was not, or the state is longer than its parameter.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        with well_formed():
            check_same("optimizer", state_dict.get("optimizer"), self._name)
            groups = self._restored_groups(copy.deepcopy(state_dict["param_groups"]))
            places = [(group, p) for group in groups for p in group["params"]]
            restored = {
                places[key][1]: self._restored(entry, *places[key])
                for key, entry in state_dict["state"].items()
            }
        # All has been looked at: from here on nothing fails.
        for group, new in zip(self.param_groups, groups, strict=True):
            group.update(new)
        for known in (self._pending, self._places, self._behind, self._saved, self.state):
            known.clear()
        self._faults = Faults()
        for parameter, (pending, state) in restored.items():
            self._pending[parameter] = pending
            if "weights" in state:
                self._behind[parameter] = None
                if (weights := state.pop("weights")) is not None:
                    self._saved[parameter] = weights
            self.state[parameter] = state
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _restored_groups(self, saved: list[Group]) -> list[Group]:
        """Return the parameter groups with the saved settings, but for the regulariser."""
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError(f"{DAMAGED}: it has other groups of parameters")
        groups = []
        for group, new in zip(self.param_groups, saved, strict=True):
            groups.append({**group, **settings_like(new, group), "params": group["params"]})
            self._check_settings(groups[-1], resumed=True)
        return groups

    def _restored(self, entry: State, group: Group, parameter: Tensor) -> tuple[Group, State]:
        """Return the pending settings and the state of a parameter, if they can be its own."""
        saved, kept = dict(entry["pending"]), self._kept(group)
        if "regularizer" in self.settings:
            check_same("regularizer", saved.get("regularizer"), group["regularizer"])
        if entry.keys() - {"weights"} != {*kept, "pending"} or saved.keys() != {*self.settings}:
            raise ValueError(f"{DAMAGED}: it is not what {self._name} keeps")
        check_state(entry, kept, rows_of(parameter))
        pending = {n: group[n] if n == "regularizer" else saved[n] for n in self.settings}
        self._check_settings({**group, **pending}, resumed=True)
        state = {
            name: value.to(parameter.device, copy=True) if torch.is_tensor(value) else value
            for name, value in entry.items()
            if name != "pending"
        }
        return pending, state

    # What subclasses write.

    def _check_group(self, group: Group) -> None:
        """Raise ValueError where arguments do not go together."""

    def _kept(self, group: Group) -> Kept:
        """Return what is kept of a parameter, by its name in the state."""
        raise NotImplementedError

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        """Take a step along the gradient of rows, which are up to date and ascend.

        Where a step does not wait, a row may be repeated, each time with all that is its own.
        """
        raise NotImplementedError

    def _looks(self, group: Group, parameter: Tensor) -> bool:
        """Say whether `_update` itself notes what is wrong, where a step does not wait."""
        return False

    def _puts_off(self, group: Group) -> bool:
        """Say whether weights of a group can be out of date."""
        return True

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        """Bring rows up to date, and mark them so."""

    def _moving(self, parameter: Tensor, state: State) -> Tensor:
        """Return rows that are 0 where weights are 0 and stay so until their next gradient."""
        return parameter

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        """Take steps of `step_rows` from `first` on, not counted yet; return where it stopped."""
        raise NotImplementedError

    def _has_loop(self, group: Group) -> bool:
        """Say whether `_update_rows` knows the regulariser of a group."""
        return elastic_strengths(group["regularizer"]) is not None

    def _after_rows(self, group: Group, parameter: Tensor, state: State) -> None:
        """Do what is to be done when `_update_rows` has stopped."""

    # The rest is for subclasses to use.

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _prepared(self, group: Group, parameter: Tensor) -> State:
        """Return the state of a parameter, made or lengthened, with its settings in force."""
        state: State = self.state[parameter]
        self._check_own(parameter)
        if not state:
            state.update(new_state(self._kept(group), rows_of(parameter)))
        known = self._pending.get(parameter)
        if known is not None and all(group[name] is known[name] for name in self.settings):
            # Most often; the same, looked at the long way, would take longer than a prox.
            self._lengthen(group, parameter, state)
            return state
        settings = {name: by_itself(group[name]) for name in self.settings}
        known = self._pending.setdefault(parameter, settings)
        if known != settings:
            self._check_settings(group, resumed=True)
            if fixed := [name for name in self.fixed if settings[name] != known[name]]:
                raise ValueError(f"{fixed[0]} cannot change between steps of {self._name}")
            self._lengthen(group, parameter, state)
            before = {**group, **known}
            self._settle(before, group, rows_of(parameter), state)
            self._pending[parameter] = settings
            self._changed(group, rows_of(parameter), state)
            self._behind.pop(parameter, None)
        self._lengthen(group, parameter, state)
        return state

    def _bring(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> bool:
        """Bring rows up to date, of which there is a gradient, unless it is of others: say so."""
        weight, later = rows_of(parameter.data), self._later(parameter)
        # Another process has read what is its own, brought up to date.
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        apart = self.delayed or (distributed and parameter in self._attached)
        if later is None:
            late = self._late(weight, state, indices)
            if not late.any():
                return False
            indices = indices[late]
        elif not apart and "last" in state:
            if not self._looks(settings, parameter):
                later.note(STALE, self._late(weight, state, indices).any())
            return False
        if not indices.numel():
            return False
        read = weight.index_select(0, indices)
        vectors = {name for name, one in self._kept(settings).items() if isinstance(one, Vector)}
        kept = {name: state[name].index_select(0, indices) for name in vectors}
        self._catch_up(settings, weight, state, indices)
        if apart:
            return False
        if later is not None:
            later.note(STALE, (read != weight.index_select(0, indices)).any())
            return False
        if read.equal(weight.index_select(0, indices)):
            return False
        weight.index_copy_(0, indices, read)
        for name, rows in kept.items():
            state[name].index_copy_(0, indices, rows)
        return True

    def _late(self, weight: Tensor, state: State, indices: Tensor) -> Tensor:
        """Say of some rows whether they may be out of date."""
        if "last" in state:
            late: Tensor = state["last"].index_select(0, indices) != state["step"]
            return late
        return nonzero_rows(self._moving(weight, state).index_select(0, indices))

    def _settle(self, before: Group, group: Group, parameter: Tensor, state: State) -> None:
        """Take all that was put off, with the settings that have been in force before."""
        self._flush(before, parameter, state)

    def _changed(self, group: Group, parameter: Tensor, state: State) -> None:
        """Adapt a state, which is up to date, to new settings."""

    def _lengthen(self, group: Group, parameter: Tensor, state: State) -> None:
        length = parameter.shape[0] if parameter.dim() else 1
        for name, value in state.items():
            if isinstance(value, Tensor) and value.size(0) != length and name != "path":
                if len(value) > length:
                    raise ValueError(
                        f"a parameter has shrunk from {len(value)} rows to {length}, which "
                        f"{self._name} cannot follow: make a new optimizer"
                    )
                kept = self._kept({**group, **self._pending[parameter]})[name]
                assert isinstance(kept, Vector)
                state[name] = lengthened(value, length, kept.value(state))

    def _flush(self, settings: Group, parameter: Tensor, state: State) -> None:
        for indices in self._chunks(self._moving(parameter, state)):
            self._catch_up(settings, parameter, state, indices)
        if "last" in state:
            state["last"].fill_(state["step"])

    def _chunks(self, moving: Tensor) -> Iterator[Tensor]:
        """Yield indices, of all rows that are not 0, so many at a time as memory is spent on."""
        chunk = max(CHUNK // max(moving[:1].numel(), 1), 1)
        for begin in range(0, len(moving), chunk):
            part = moving[begin : begin + chunk]
            if self._later(moving):
                yield torch.arange(begin, begin + len(part), device=part.device)
            else:
                yield nonzero_rows(part).nonzero()[:, 0] + begin

    def _pairs(self) -> list[tuple[Group, Tensor]]:
        """Return all parameters, each with its group."""
        return [(group, p) for group in self.param_groups for p in group["params"]]

    def _find(self, parameter: Tensor | None) -> tuple[Group, Tensor]:
        """Return a parameter and its group."""
        found = [pair for pair in self._pairs() if parameter is None or pair[1] is parameter]
        if len(found) != 1:
            raise ValueError(f"say which parameter of the optimizer: {len(found)} are meant")
        return found[0]


@torch._disable_dynamo  # type: ignore[attr-defined]
def _outside_of_graphs(optimizer: SparseOptimizer, closure: Any) -> Any:
    """Take a step as it is under `torch.compile`: gradients that are sparse are in no graph."""
    return optimizer.step(closure)


def _check_rate(group: Group) -> None:
    """Raise ValueError if the learning rate, which schedules change, is none."""
    if not 0 <= group["lr"] < math.inf:
        raise ValueError(f"lr must be finite, 0 or more, not {group['lr']}")


def identity(parameter: Tensor) -> tuple[int, ...]:
    """Return what tells whether somebody has changed a parameter, or put other memory under it."""
    # Those made in inference mode count no changes.
    version = 0 if parameter.is_inference() else parameter._version
    return version, parameter.data_ptr(), parameter.numel()


def _sum_of_bits(parameter: Tensor) -> int:
    """Return what tells weights from other ones; zeros, which they grow by, add nothing."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
    return int(parameter.detach().view(kind).sum(dtype=torch.int64))


def row_gradient(
    parameter: Tensor, later: Faults | None = None, *, looked: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a parameter as (indices, rows), indices ascending, each once.

    later: where values that are not finite are noted (if `looked`) without waiting for the device.
        Indices may be repeated then, each time with the whole gradient of the row.

    Raises ValueError, IndexError: it is of more than rows, or of a row that there is not.
    Raises DivergenceError: a value is not finite; the error names the row (a feature's id).
    """
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        values = rows_of(gradient)
        indices = torch.arange(len(values), device=values.device)
    else:
        if gradient.sparse_dim() != 1:
            raise ValueError(
                "a gradient is to be sparse in the first dimension alone, the rows, not in "
                f"{gradient.sparse_dim()}"
            )
        indices, values = gradient._indices()[0], gradient._values()
        # Autograd forgets that a gradient is coalesced; to look costs a tenth of doing it again.
        ascend = gradient.is_coalesced() or (later is None and _ascend(indices))
        if later is None and (length := indices.numel()):
            ends = indices[:: max(length - 1, 1)] if ascend else torch.stack(indices.aminmax())
            least, *_, largest = ends.tolist() * 2
            if least < 0 or largest >= len(parameter):
                # torch would write into memory of others, or find it when half a step is taken.
                bad = least if least < 0 else largest
                raise IndexError(f"a gradient is of row {bad} of {len(parameter)}")
        if not ascend and later is not None:
            indices, values = _summed(indices, values)
        elif not ascend:
            gradient = gradient.coalesce()
            indices, values = gradient.indices()[0], gradient.values()
        values = rows_of(values)
    if later is not None:
        if looked:
            later.note_finite(GRADIENT, values)
    # A sum may be infinite though nothing is that it is of.
    elif not math.isfinite(values.sum()) and not bool((finite := values.isfinite()).all()):
        bad = int(finite.reshape(len(values), -1).all(1).logical_not().nonzero()[0])
        number = float(values[bad][~finite[bad]].reshape(-1)[0])
        raise DivergenceError(
            f"the gradient of feature id {int(indices[bad])} is {number}: lower the "
            "learning rate, and check the feature values and gains of the k-best lists"
        )
    return indices, values


def _ascend(indices: Tensor) -> bool:
    """Say whether each index is larger than the one before; most often a few say no."""
    some = indices[:8].tolist()
    if any(a >= b for a, b in itertools.pairwise(some)):
        return False
    return indices.numel() <= len(some) or bool((indices[1:] > indices[:-1]).all())


def _summed(indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in order; repeated ones have, each time, the sum of all: nothing waits."""
    indices, order = indices.sort()
    begins = torch.zeros_like(indices)
    torch.ne(indices[1:], indices[:-1], out=begins[1:])
    place = begins.cumsum(0)
    sums = torch.zeros_like(values).index_add_(0, place, values.index_select(0, order))
    return indices, sums.index_select(0, place)
