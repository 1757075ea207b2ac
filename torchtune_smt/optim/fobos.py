"""FOBOS: gradient step, then proximal step, with any regulariser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import accepting, one_of
from torchtune_smt.core.archive import DAMAGED
from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.optim import row_kernels
from torchtune_smt.optim.row_kernels import RowSteps, StepAverage
from torchtune_smt.optim.sparse import SCHEDULE, SCHEDULES, SparseOptimizer, identity, rate
from torchtune_smt.optim.state import (
    Group,
    Kept,
    State,
    Vector,
    add_rows,
    beside,
    lengthened,
    new_state,
    nonzero_rows,
    regularized_rows,
    rows_of,
    with_step,
)
from torchtune_smt.regularizers.base import (
    Regularizer,
    elastic_strengths,
    is_lazy,
    is_separable,
    is_separable_by_rows,
    proximal,
)

# All weights are brought up to date when the scale of those put off has shrunk to this.
SMALLEST_SCALE = 1e-100
# So are they when so many steps are put off, each of which takes 16 bytes.
LONGEST = 1 << 20
_NONE = np.empty(0)


class FOBOS(SparseOptimizer):
    """Forward-backward splitting (Duchi and Singer, 2009; Liu et al., 2013, Algorithm 2).

    At step t = 1, 2, ...: w -= η_t · g; w = prox of Ω with step η_{t+1}, where η_t = lr · t^-p.

    How the proximal steps are taken depends on the regulariser:

    - with `elastic` (L1, L2, ElasticNet): put off, exactly. With P <- P / (1 + c λ2) and
      S <- S + c λ1 / P_before at each step of size c, a weight a last touched at (P0, S0) has
      become sign(a) · P · max(|a| / P0 - (S - S0), 0). State: S and P after each step (float64)
      since all weights were up to date, of each row the last step that it has seen (int32).
    - separable and `lazy`: put off; the steps missed are one of the summed size, S with λ1 = 1.
    - any other, such as OSCAR: taken at once on all weights that are not 0, of which a list is
      kept: O(u log u) a step for u such weights, whatever D is. The first step, and the first
      one after `flush`, look for them in the whole vector. A dimension that is not given is, at
      each step, the number of regularised coordinates that the parameter then has. For OSCAR
      see `FobosOscar`, too, which takes the same steps and puts them off. A regulariser with a
      prox of its own, and `separable` from a parent, is given the whole vector at each step.

    `averaged` gives the mean of the weights at the ends of the epochs, or after each step, where
    the last ones have what the last gradients had by chance. At the end of an epoch all weights
    are brought up to date and added up. A sum over steps is put off as the steps are: what an
    elastic weight has been between two of its gradients adds up in O(log n) for n steps, with
    `StepSums`; those that are not put off are added up at each step.

    params: of any shape, a vector where Ω is not separable.
    lr: η0; 1 in Liu et al.
    unregularized: this many first coordinates (the dense features) are exempt.
    average: what `averaged` is the mean of; "step" is refused where steps are put off, and the
        regulariser has no `elastic`.
    options: `lazy`, `maximize` and `wait`; see `SparseOptimizer`.
    """

    accepts = accepting(schedule=SCHEDULE, average=one_of("epoch", "step", "none"))
    settings: ClassVar[tuple[str, ...]] = (*SparseOptimizer.settings, "average")
    fixed: ClassVar[tuple[str, ...]] = ("average",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        regularizer: Regularizer | None = None,
        *,
        schedule: str = "1/t",
        unregularized: int = 0,
        average: str = "none",
        **options: bool,
    ) -> None:
        given = {"regularizer": regularizer, "unregularized": unregularized}
        kinds = {"schedule": schedule, "average": average}
        super().__init__(params, {"lr": lr, **given, **kinds}, **options)

    def _check_group(self, group: Group) -> None:
        regularizer = group["regularizer"]
        if (
            group["average"] == "step"
            and elastic_strengths(regularizer) is None
            and self._puts_off(group)
        ):
            raise ValueError(
                f"average=step: steps of {type(regularizer).__name__} are put off, and what "
                "weights are between them is not known without taking them; use average=epoch"
            )

    @torch.no_grad()
    def flush(self) -> None:
        """Bring all rows of all parameters, and sums of them, up to date; O(D)."""
        # Of rows that were late the sums are brought up to date with them.
        late = {*self._behind}
        super().flush()
        # What is written to weights from now on has not been there before.
        for group, parameter in self._pairs():
            if parameter not in late and (state := self.state.get(parameter)):
                self._add_up_all(group, parameter, state)

    @torch.no_grad()
    def averaged(self, parameter: Tensor | None = None) -> Tensor:
        """Return the averaged weights [D], or as they are before there are any; O(D)."""
        group, parameter = self._find(parameter)
        if group["average"] == "none":
            raise ValueError(
                f"nothing was averaged: build {self._name} with average=epoch or average=step"
            )
        state = self._prepared(group, parameter)
        clock: int = state["epochs" if group["average"] == "epoch" else "step"]
        if clock == 0:
            self.flush()
            return parameter.detach().clone()
        self._add_up_all(group, parameter, state)
        if parameter in self._behind:
            self._behind[parameter] = identity(parameter)
        total: Tensor = state["total"]
        return (total / clock).to(parameter.dtype).view(parameter.shape)

    def _add_up_all(self, group: Group, parameter: Tensor, state: State) -> None:
        if group["average"] == "step":
            settings = {**group, **self._pending[parameter]}
            self._flush(settings, rows_of(parameter), state)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Learn that an epoch is over: its weights may enter the average, which is O(D)."""
        for group, parameter in self._pairs():
            if group["average"] == "epoch":
                state, weight = self._prepared(group, parameter), rows_of(parameter)
                self._flush(group, weight, state)
                self._behind.pop(parameter, None)
                state["total"] += weight
                state["epochs"] += 1

    def _puts_off(self, group: Group) -> bool:
        regularizer = group["regularizer"]
        strengths = elastic_strengths(regularizer)
        if strengths is not None:
            return strengths != (0, 0)
        return is_separable_by_rows(regularizer) and is_lazy(regularizer)

    def _kept(self, group: Group) -> Kept:
        kept: Kept = {"step": 0, **self._kept_sums(group)}
        if self._puts_off(group):
            kept |= {"S": 0.0, "P": 1.0, "path": _start(group)}
        if self._puts_off(group) or group["average"] == "step":
            kept["last"] = Vector("step", torch.int32, of_rows=True)
        return kept

    def _kept_sums(self, group: Group) -> Kept:
        """Return what is kept for averages; "sums", too, while steps are put off."""
        kept: Kept = {}
        if group["average"] != "none":
            kept["total"] = Vector(0.0, torch.float64)
        if group["average"] == "epoch":
            kept["epochs"] = 0
        return kept

    def _changed(self, group: Group, parameter: Tensor, state: State) -> None:
        kept = {name: state[name] for name in self._kept_sums(group)}
        step = state["step"]
        state.clear()
        state.update(new_state(self._kept(group), parameter), step=step, **kept)

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        t = state["step"] + 1
        lr, schedule = group["lr"], group["schedule"]
        step = rate(lr, schedule, t + 1)
        late = self._puts_off(group)
        if not late:
            self._catch_up(group, parameter, state, indices)
        sums = self._step_sums(group, state)
        state["step"] = t
        once = not self._later(parameter)
        add_rows(parameter, indices, gradient, alpha=-rate(lr, schedule, t), once=once)
        if late:
            # The step's own prox is put off, too: it is taken when the weight is next needed.
            if sums is not None:
                sums.append(step)
            # On all weights, without touching one.
            lambda1, lambda2 = elastic_strengths(group["regularizer"]) or (1.0, 0.0)
            state["S"] += step * lambda1 / state["P"]
            state["P"] /= 1 + step * lambda2
            numbers = (state["S"], state["P"])[: len(_start(group))]
            state["path"] = with_step(state["path"], *numbers)
            self._after_rows(group, parameter, state)
        elif elastic_strengths(group["regularizer"]) is None:
            self._prox(group, parameter, state, indices, step)

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        if "last" not in state:
            return
        old, last = (t.index_select(0, indices) for t in (parameter, state["last"]))
        if settings["average"] == "step":
            self._add_up(settings, old, beside(last, old), state, indices)
        state["last"].index_fill_(0, indices, state["step"])
        if self._puts_off(settings):
            then = state["path"].index_select(0, last - _begin(state))
            checked = self._later(parameter) is None
            weight = self._moved(settings, old, state, then.unbind(1), checked)
            parameter.index_copy_(0, indices, regularized_rows(weight, old, indices, settings))

    def _add_up(
        self, settings: Group, weight: Tensor, last: Tensor, state: State, indices: Tensor
    ) -> None:
        """Add to the sums what coordinates have been after the steps that they have missed."""
        strengths, sums = elastic_strengths(settings["regularizer"]), state.get("sums")
        added = weight.double() * (state["step"] - last)
        pulled = beside(indices >= settings["unregularized"], weight)
        if strengths is None:
            # Added at each step.
            added = added.masked_fill_(pulled, 0.0)
        elif sums is not None:
            since = (last - _begin(state)).expand_as(weight).reshape(-1).cpu().numpy()
            late = sums.of(weight.reshape(-1).to("cpu", torch.float64).numpy(), since)
            late = torch.from_numpy(late).to(added).view_as(added)
            added = torch.where(pulled, late, added)
        # Coordinates may be named twice.
        state["total"].index_copy_(0, indices, state["total"].index_select(0, indices) + added)

    def _step_sums(self, group: Group, state: State) -> StepSums | None:
        """Return what sums of steps that are put off are made of, if they are wanted."""
        if group["average"] != "step" or not self._puts_off(group):
            return None
        if "sums" not in state:
            state["sums"] = StepSums(elastic_strengths(group["regularizer"]) or (0.0, 0.0))
        sums: StepSums = state["sums"]
        return sums

    def _moved(
        self, settings: Group, weight: Tensor, state: State, then: Sequence[Tensor], checked: bool
    ) -> Tensor:
        """Return rows after the steps since S, and P, were what they were `then`, for each row."""
        S, *P = (beside(number, weight) for number in then)
        missed = state["S"] - S
        if elastic_strengths(settings["regularizer"]) is None:
            # A step of size 0 could still move weights into a permitted region.
            new = proximal(settings["regularizer"], weight, missed.to(weight.dtype), checked)
            return torch.where(missed > 0, new, weight)
        pull = missed * P[0] if P else missed
        moved: Tensor = weight.sign() * (weight.abs() - pull).clamp_min_(0)
        if P:
            # torch divides a number by a vector through reciprocals: P / P would not always be 1,
            # and to read a weight twice would change it.
            moved *= torch.full_like(P[0], state["P"]) / P[0]
        return moved.to(weight.dtype)

    def _after_rows(self, group: Group, parameter: Tensor, state: State) -> None:
        """Start anew with P = 1 before it underflows, and before the path takes much memory."""
        if "P" in state and (state["P"] < SMALLEST_SCALE or len(state["path"]) > LONGEST):
            self._flush(group, parameter, state)
            state |= {"S": 0.0, "P": 1.0}
            state["path"] = with_step(state["path"][:0], *_start(group))

    def _prox(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, step: float
    ) -> None:
        """Take a proximal step at once, on the regularised weights that are not 0."""
        regularizer, first = group["regularizer"], group["unregularized"]
        if regularizer.separable and not is_separable(regularizer):
            # Its parent's prox takes single weights, and whether its own may is not said.
            parameter[first:] = proximal(regularizer, parameter[first:].detach(), step)
            if "last" in state:
                state["total"][first:] += parameter[first:]
            return
        # The weights that are not 0, ascending.
        active = self._places.get(parameter)
        if active is None:
            active = nonzero_rows(parameter[first:]).nonzero()[:, 0] + first
        else:
            active = merged(active, indices[indices >= first])
        weight = parameter.index_select(0, active)
        if is_separable(regularizer):
            weight = proximal(regularizer, weight, step)
        else:
            # What is not given is 0, and stays so.
            length = max(parameter.numel() - first, 0)
            sparse = sparse_vector(active - first, weight, length)
            weight = proximal(regularizer, sparse, step)
        parameter.index_copy_(0, active, weight)
        if "last" in state:
            state["total"].index_add_(0, active, weight.double())
        self._places[parameter] = active[nonzero_rows(weight)]

    def _flush(self, group: Group, parameter: Tensor, state: State) -> None:
        super()._flush(group, parameter, state)
        # No weight has missed a step.
        state.pop("sums", None)
        if "path" in state:
            state["path"] = state["path"][-1:].clone()
        # From now on the weights may be changed by others.
        self._places.pop(parameter, None)

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        strengths = elastic_strengths(group["regularizer"]) or (0.0, 0.0)
        none, path = weight[:0], state.get("path")
        average = StepAverage(none, none, np.empty((0, 4)))
        sums = self._step_sums(group, state)
        if group["average"] == "step":
            average = average._replace(total=state["total"].numpy())
        if sums is not None:
            sums.make_room(steps.margins.size - first)
            average = average._replace(sizes=sums.size, blocks=sums.block)
        if path is not None:
            room = lengthened(path, len(path) + steps.margins.size - first, 0.0)
        done, total_shrink, total_scale = row_kernels.fobos(
            weight,
            state["last"].numpy() if "last" in state else steps.feature[:0],
            np.empty((0, 1)) if path is None else room.numpy(),
            (state.get("S", 0.0), state.get("P", 1.0), SMALLEST_SCALE),
            state["step"],
            0 if path is None else _begin(state),
            steps,
            (float(group["lr"]), SCHEDULES[group["schedule"]], *strengths),
            group["unregularized"],
            first,
            average,
        )
        if sums is not None:
            sums.count += done - first
        if path is not None:
            state |= {"S": total_shrink, "P": total_scale}
            state["path"] = room[: len(path) + done - first]
        return int(done)

    def _restored(self, entry: State, group: Group, parameter: Tensor) -> tuple[Group, State]:
        plain = {name: value for name, value in entry.items() if name != "sums"}
        pending, state = super()._restored(plain, group, parameter)
        if "path" not in state:
            return pending, state
        # A compiled loop reads what rows have missed, and nobody else's memory.
        path, late = state["path"], state["step"] - state["last"]
        missed = len(path) - 1 if pending["average"] == "step" else 0
        sizes = entry.get("sums", path[:0, 0])
        if bool(((late < 0) | (late >= len(path))).any()) or sizes.shape != (missed,):
            raise ValueError(DAMAGED)
        if missed:
            strengths = elastic_strengths(pending["regularizer"]) or (0.0, 0.0)
            state["sums"] = StepSums(strengths, sizes.numpy())
        return pending, state


class StepSums:
    """Proximal steps of an elastic net (λ1, λ2), and what weights add up to over them.

    sizes (float64 [n]): the sizes of steps that there are already.

    As attributes:
    size (float64 [room]): the sizes; the first `count` count.
    block (float64 [blocks, 4]): see `row_kernels`.
    """

    def __init__(self, strengths: tuple[float, float], sizes: Float64 = _NONE) -> None:
        self.lambda1, self.lambda2 = strengths
        self.size, self.count = sizes, sizes.size
        self.make_room(1)

    def make_room(self, steps: int) -> None:
        """Let there be room for so many more steps; amortised O(steps)."""
        needed = self.count + steps
        if needed <= self.size.size:
            return
        room = max(needed, 2 * self.size.size, 64)
        size = np.empty(-(-room // row_kernels.RADIX) * row_kernels.RADIX)
        size[: self.count] = self.size[: self.count]
        self.size, self.block = size, np.empty((row_kernels.number_of_blocks(size.size), 4))
        row_kernels.build(self.size, self.block, self.count, self.lambda1, self.lambda2)

    def to_tensors(self) -> Tensor:
        """Return a copy of the sizes."""
        return torch.from_numpy(self.size[: self.count].copy())

    def append(self, size: float) -> None:
        """Add a step."""
        self.make_room(1)
        row_kernels.append(self.size, self.block, self.count, size, self.lambda1, self.lambda2)
        self.count += 1

    def of(self, weights: Float64, first: Int32) -> Float64:
        """Return what each weight (float64 [k]) adds up to over the steps from `first` (int32)."""
        out = np.empty(weights.size)
        row_kernels.sums(
            self.size, self.block, self.count, first, weights, self.lambda1, self.lambda2, out
        )
        return out


def _start(group: Group) -> tuple[float, ...]:
    """Return S and P as they begin; S alone where P stays 1."""
    strengths = elastic_strengths(group["regularizer"])
    return (0.0, 1.0) if strengths and strengths[1] else (0.0,)


def _begin(state: State) -> int:
    """Return the step before the first one of the path, up to which all rows have been seen."""
    begin: int = state["step"] + 1 - len(state["path"])
    return begin


def merged(active: Tensor, indices: Tensor) -> Tensor:
    """Return the union of two ascending vectors of different numbers, ascending; O(length)."""
    if active.numel() == 0:
        return indices
    places = torch.searchsorted(active, indices)
    new = active[places.clamp_max(active.numel() - 1)] != indices
    if not new.any():
        return active
    places = places[new] + torch.arange(int(new.sum()), device=active.device)
    union = active.new_empty(active.numel() + places.numel())
    old = torch.ones_like(union, dtype=torch.bool)
    old[places] = False
    union[places] = indices[new]
    union[old] = active
    return union
