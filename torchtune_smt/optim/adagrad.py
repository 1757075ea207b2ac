"""AdaGrad, and AROW, with proximal regularisation, exact and lazy."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import SWITCH, above, accepting, check_arguments, least, one_of
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.optim import row_kernels
from torchtune_smt.optim.faults import SQUARES, Faults
from torchtune_smt.optim.row_kernels import RowSteps
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.optim.state import Group, Kept, State, Vector, beside, rows_of
from torchtune_smt.regularizers.base import (
    Regularizer,
    elastic_strengths,
    is_lazy,
    is_separable,
    is_separable_by_rows,
    proximal,
)
from torchtune_smt.regularizers.ops import triton_kernels

_CURE: Final = "lower the learning rate, and check the feature values of the k-best lists"
_INSTEAD: Final = "use FOBOS (optimizer=fobos), or L1, L2 or ElasticNet as regularizer"


class AdaGrad(SparseOptimizer):
    """AdaGrad and FOBOS on sparse gradients (Green et al., 2013, Eqs. 4, 5, 13-15).

    At step t, for each coordinate: G += g²; w -= lr · g / √G; w = prox with step lr / √G (a
    soft threshold by lr · strength / √G for `L1`). Coordinates with G = 0 stay as they are.

    The regularisation of coordinates that a step does not touch is put off: their G does not
    change, so the steps that were missed equal one of the summed size, or, for `L2` and
    `ElasticNet`, have a closed form. It is taken, with the old G, before a coordinate is touched
    again or read; see `SparseOptimizer`.

    With `regularize_each` "epoch", steps are plain AdaGrad, and `end_epoch` regularises: n times, n
    the number of steps since the last time, with the G of then. That is as much as "step" does to a
    coordinate that no step of the epoch touches.

    State per coordinate: G (dtype of the parameter; with `rowwise` one for each row) and, with
    "step", per row the last step that it has seen (int32).

    lr: η; 0.02 in the paper. When it changes between steps, what was put off is first taken with
        the old one (O(D)).
    regularizer: separable, and either lazy or with `elastic`: all of this package but OSCAR;
        `GroupLasso` with `rowwise`.
    unregularized: this many first rows, or coordinates (the dense features), are exempt.
    initial_accumulator: G at the start.
    regularize_each: when weights are regularised (Simianer et al. 2012 did it once an epoch).
    rowwise: whether G is one for each row, to which a step adds the mean of the squares.
    options: `lazy`, `maximize` and `wait`; see `SparseOptimizer`.
    """

    # Whether steps are divided by √G, and not, as in AROW, by G.
    square_root: ClassVar[bool] = True
    accepts = accepting(
        initial_accumulator=least(0), regularize_each=one_of("step", "epoch"), rowwise=SWITCH
    )
    fixed: ClassVar[tuple[str, ...]] = ("regularize_each", "rowwise")
    settings: ClassVar[tuple[str, ...]] = ("lr", *SparseOptimizer.settings, *fixed)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        initial_accumulator: float = 0.0,
        regularize_each: str = "step",
        rowwise: bool = False,
        **options: bool,
    ) -> None:
        given = {
            "regularizer": regularizer,
            "unregularized": unregularized,
            "initial_accumulator": initial_accumulator,
            "regularize_each": regularize_each,
            "rowwise": rowwise,
        }
        super().__init__(params, {"lr": lr, **given}, **options)

    def _check_group(self, group: Group) -> None:
        regularizer = group["regularizer"]
        if regularizer is None:
            return
        name = type(regularizer).__name__
        facts = {"separable": is_separable(regularizer), "lazy": is_lazy(regularizer)}
        unsaid = [fact for fact, said in facts.items() if getattr(regularizer, fact) and not said]
        if unsaid:
            raise ValueError(
                f"{name} has a value or prox of its own, and {' and '.join(unsaid)} from a parent, "
                f"which does not count: say in {name} whether it is separable and lazy, as "
                f"{self._name} needs it, or use FOBOS (optimizer=fobos)"
            )
        check_steps(regularizer, self._name, group["rowwise"])
        if not facts["lazy"] and elastic_strengths(regularizer) is None:
            raise ValueError(
                f"{self._name} puts regularisation off until a weight is needed, and {name} is not "
                f"lazy: {_INSTEAD}"
            )

    def _puts_off(self, group: Group) -> bool:
        return _each_step(group) and elastic_strengths(group["regularizer"]) != (0, 0)

    def _has_loop(self, group: Group) -> bool:
        return _each_step(group) and super()._has_loop(group)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Learn that an epoch is over: with `regularize_each` "epoch" it is time; O(D)."""
        for group, parameter in self._pairs():
            if parameter in self.state and not _each_step(group):
                state = self._prepared(group, parameter)
                self._regularize(group, rows_of(parameter), state)

    def _settle(self, before: Group, group: Group, parameter: Tensor, state: State) -> None:
        super()._settle(before, group, parameter, state)
        if not _each_step(group):
            self._regularize(before, parameter, state)

    def _regularize(self, settings: Group, parameter: Tensor, state: State) -> None:
        """Regularise all rows for the steps of this epoch."""
        times = state["step"] - state["regularized"]
        for indices in self._chunks(parameter):
            late = torch.full_like(indices, times)
            self._regularize_rows(settings, parameter, state, indices, late)
        state["regularized"] = state["step"]

    def _kept(self, group: Group) -> Kept:
        sums = Vector(group["initial_accumulator"], of_rows=group["rowwise"])
        kept: Kept = {"step": 0, "sum": sums}
        if _each_step(group):
            return kept | {"last": Vector("step", torch.int32, of_rows=True)}
        return kept | {"regularized": 0}

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        later = self._later(parameter)
        if self._looks(group, parameter):
            state["step"] += 1
            faults, gradient = self._faults.of(parameter.device), gradient.contiguous()
            self._rows(group, parameter, state).step(indices, gradient, state["step"], faults)
            return
        accumulated = with_squares(state["sum"].index_select(0, indices), gradient, indices, later)
        rate = beside(self._rate(accumulated, group["lr"]), gradient)
        weight = parameter.index_select(0, indices).addcmul_(gradient, rate, value=-1)
        state["step"] += 1
        if _each_step(group):
            weight = regularized(weight, rate, None, indices, group, later is None)
            state["last"].index_fill_(0, indices, state["step"])
        parameter.index_copy_(0, indices, weight)
        state["sum"].index_copy_(0, indices, accumulated)

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        if "last" not in state:
            # It waits for the end of the epoch.
            return
        if self._looks(settings, parameter):
            self._rows(settings, parameter, state).catch_up(indices.contiguous(), state["step"])
            return
        late = state["step"] - state["last"].index_select(0, indices)
        self._regularize_rows(settings, parameter, state, indices, late)
        state["last"].index_fill_(0, indices, state["step"])

    def _regularize_rows(
        self, settings: Group, parameter: Tensor, state: State, indices: Tensor, times: Tensor
    ) -> None:
        """Take so many proximal steps on each row."""
        weight = parameter.index_select(0, indices)
        rate = beside(self._rate(state["sum"].index_select(0, indices), settings["lr"]), weight)
        times, checked = beside(times, weight), self._later(parameter) is None
        weight = regularized(weight, rate, times, indices, settings, checked)
        parameter.index_copy_(0, indices, weight)

    def _looks(self, group: Group, parameter: Tensor) -> bool:
        """Say whether there are kernels for the rows of a parameter, on a GPU."""
        return (
            (kernels := _kernels(parameter)) is not None
            and self._later(parameter) is not None
            and parameter.is_contiguous()
            and parameter.numel() <= kernels.WIDEST * max(len(rows_of(parameter)), 1)
            and _each_step(group)
            and elastic_strengths(group["regularizer"]) is not None
        )

    def _rows(self, group: Group, parameter: Tensor, state: State) -> Any:
        """Return the rows of a parameter as kernels of a GPU see them; see `row_tiles`."""
        kernels: Any = _kernels(parameter)
        sizes = float(group["lr"]), *(elastic_strengths(group["regularizer"]) or (0.0, 0.0))
        first, root = group["unregularized"], self.square_root
        return kernels.Rows(parameter, state["sum"], state["last"], sizes, first, root)

    def _rate(self, sums: Tensor, lr: Tensor | float) -> Tensor:
        """Return lr / √G, or lr / G, and 0 where G = 0."""
        rate = (sums.sqrt() if self.square_root else sums).reciprocal().mul_(lr)
        kind = torch.finfo(sums.dtype)
        if sums.numel() and not self._later(sums) and float(sums.min()) > kind.tiny**0.5:
            return rate
        # A divisor next to 0 gives a step above what the type has.
        return rate.masked_fill_(sums == 0, 0).clamp_max_(kind.max)

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        done = row_kernels.adagrad(
            weight,
            state["sum"].numpy(),
            state["last"].numpy(),
            state["step"],
            steps,
            (float(group["lr"]), *(elastic_strengths(group["regularizer"]) or (0.0, 0.0))),
            self.square_root,
            group["unregularized"],
            first,
        )
        if done < 0:
            taken = -1 - int(done)
            state["step"] += taken + 1 - first
            raise DivergenceError(
                "the sum of the squared gradients of a feature of pair "
                f"{steps.order[taken]} is above what float64 has: {_CURE}"
            )
        return int(done)


class AROW(AdaGrad):
    """Linearised AROW (Green et al. 2013, Eqs. 10, 11; Chiang 2012), with a diagonal Σ.

    At step t, for each coordinate, with P = 1/Σ its precision: P += g²; w -= lr · g / P; w = prox
    with step lr / P. It is `AdaGrad` without the square root: under gradients of one size steps
    fall as 1/t, not as 1/√t, and the first ones depend on the precision at the start. Everything
    else is as there.

    The gradient of the linearised loss stands for x (their α_t is 1), so any loss will do, such as
    the pairwise logistic and hinge; for the hinge, a pair that is in order has no effect on P.

    initial_precision: 1/Σ_0: the first step of a coordinate is lr · g / (initial_precision + g²).
    """

    square_root: ClassVar[bool] = False
    # With 0 a first step would be lr / g, the larger the smaller the gradient.
    accepts = accepting(initial_precision=above(0), initial_accumulator=above(0))

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        initial_precision: float = 1.0,
        rowwise: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(AROW, {"initial_precision": initial_precision})
        super().__init__(
            params,
            lr,
            regularizer,
            unregularized=unregularized,
            initial_accumulator=initial_precision,
            rowwise=rowwise,
            **options,
        )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; see `SparseOptimizer.add_param_group`."""
        names = {"initial_precision": "initial_accumulator"}
        super().add_param_group({names.get(name, name): v for name, v in param_group.items()})


def check_steps(regularizer: Regularizer, optimizer: str, rowwise: bool) -> None:
    """Raise ValueError if a regulariser has no prox with steps of each coordinate, or row."""
    name = type(regularizer).__name__
    if not is_separable_by_rows(regularizer):
        raise ValueError(
            f"{optimizer} has a step of its own for each coordinate, and {name} is not separable: "
            f"its prox under such steps is not the one that is known; {_INSTEAD}"
        )
    if not (rowwise or is_separable(regularizer)):
        raise ValueError(f"{name} has one step for all numbers of a row: give rowwise=True")


def with_squares(
    sums: Tensor, gradient: Tensor, indices: Tensor, later: Faults | None = None
) -> Tensor:
    """Return sums ([k, ...], or [k] of rows) with the squares of gradients ([k, ...]), or means.

    indices: for the DivergenceError of one that is not finite; or that is noted in `later`.
    """
    squares = gradient.square()
    if sums.dim() < squares.dim():
        squares = squares.flatten(1).mean(1)
    result = squares.add_(sums)
    if later is not None:
        later.note_finite(SQUARES, result)
    # All of them may be finite, and their sum not.
    elif not math.isfinite(result.sum()) and not bool((finite := result.isfinite()).all()):
        bad = int(indices[finite.logical_not().nonzero()[0, 0]])
        raise DivergenceError(
            f"the sum of the squared gradients of feature id {bad} is above what "
            f"{result.dtype} has: {_CURE}"
        )
    return result


def _kernels(parameter: Tensor) -> ModuleType | None:
    return triton_kernels("torchtune_smt.optim.row_tiles") if parameter.is_cuda else None


def _each_step(group: Group) -> bool:
    """Say whether a group is regularised after each step, and not at the end of an epoch."""
    each: bool = group["regularize_each"] == "step"
    return each


def regularized(
    weight: Tensor,
    step: Tensor,
    times: Tensor | None,
    indices: Tensor,
    settings: Group,
    checked: bool,
) -> Tensor:
    """Return weights after `times` (None: 1) proximal steps of some size, none where it is 0."""
    regularizer = settings["regularizer"]
    strengths = elastic_strengths(regularizer)
    if strengths == (0, 0):
        return weight
    if settings["unregularized"]:
        step = step.masked_fill(beside(indices < settings["unregularized"], weight), 0)
    if strengths is not None:
        return elastic_steps(weight, step, times, *strengths)
    total = step if times is None else (step * times).clamp_max_(torch.finfo(step.dtype).max)
    # A step of size 0 could still move weights into a permitted region.
    return torch.where(total == 0, weight, proximal(regularizer, weight, total, checked))


def elastic_steps(
    weight: Tensor, step: Tensor, times: Tensor | None, lambda1: float, lambda2: float
) -> Tensor:
    """Return weights after `times` (None: 1) proximal steps of one size of an elastic net.

    With q = 1 + step · λ2, they are sign(w) · max(|w| - λ1 (q^times - 1) / λ2, 0) / q^times.
    """
    if lambda2 == 0:
        most = step * lambda1 if times is None else step * times * lambda1
        return weight - weight.clamp(-most, most)
    if times is None:
        most = step * lambda1
        return (weight - weight.clamp(-most, most)).div_(1 + step * lambda2)
    power = (step * lambda2).log1p() * times
    moved = weight
    if lambda1:
        most = lambda1 * power.expm1() / lambda2
        moved = weight - weight.clamp(-most, most)
    return torch.where(times == 0, weight, moved * (-power).exp())
