"""AdaGrad with proximal regularisation, exact and lazy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.optim.sparse import check_vectors, lengthened, sparse_gradient
from torchtune_smt.regularizers.base import Regularizer

# Coordinates that `flush` works on at a time, which bounds its memory.
CHUNK = 1 << 20


class AdaGrad(torch.optim.Optimizer):
    """AdaGrad and FOBOS on sparse gradients (Green et al., 2013, Eqs. 4, 5, 13-15).

    At step t, for each coordinate: G += g²; w -= lr · g / √G; w = prox with step lr / √G (a
    soft threshold by lr · strength / √G for `L1`). Coordinates with G = 0 stay as they are.

    The regularisation of coordinates that a step does not touch is put off: their G does not
    change, so the steps that were missed equal one of the summed size. It is taken, with the
    old G, before a coordinate is touched again, when it is asked for (`catch_up`), and for all
    by `flush`: the iterates are those of the eager method, and no step costs O(D). A parameter
    must be brought up to date before it is read.

    State per coordinate: G (dtype of the parameter) and the last step that it has seen
    (int32). A parameter may grow between steps (``parameter.data = longer``); its state
    follows.

    Parameters
    ----------
    params : iterable of tensors or param groups
        Vectors.
    lr : float
        η > 0; 0.02 in the paper. When it changes between steps, what was put off is first
        taken with the old one (O(D)).
    regularizer : Regularizer, optional
        Separable and lazy, such as `L1`.
    unregularized : int
        This many first coordinates (the dense features) are exempt.
    initial_accumulator : float
        G at the start, 0 or more.

    Raises
    ------
    ValueError
        An argument is out of range, or the regulariser lacks what is needed.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        initial_accumulator: float = 0.0,
    ) -> None:
        # What regularisation still to be taken is to be taken with, by parameter.
        self._pending: dict[Tensor, tuple[float, Regularizer | None, int]] = {}
        defaults = {
            "lr": lr,
            "regularizer": regularizer,
            "unregularized": unregularized,
            "initial_accumulator": initial_accumulator,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; it may set each argument of the class for itself."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        check_vectors(group["params"], "AdaGrad")
        if not 0 < group["lr"] < float("inf"):
            raise ValueError(f"lr must be finite and above 0, not {group['lr']}")
        if not 0 <= group["initial_accumulator"] < float("inf"):
            raise ValueError(
                f"initial_accumulator must be finite, 0 or more, not {group['initial_accumulator']}"
            )
        if group["unregularized"] < 0:
            raise ValueError(f"unregularized must be 0 or more, not {group['unregularized']}")
        regularizer = group["regularizer"]
        if regularizer is not None and not (regularizer.separable and regularizer.lazy):
            lacking = "lazy" if regularizer.separable else "separable"
            raise ValueError(
                f"AdaGrad has a step of its own for each coordinate and puts steps off, and "
                f"{type(regularizer).__name__} is not {lacking}: use L1, or FOBOS instead of "
                "AdaGrad"
            )

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step on all parameters that have a gradient (it may be empty, but sparse).

        Raises
        ------
        TypeError, ValueError
            A gradient is dense, or not finite; no parameter has been changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [
            (group, parameter, *sparse_gradient(parameter, "AdaGrad"))
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for group, parameter, indices, gradient in work:
            self._step(group, parameter, indices, gradient)
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
        if group["regularizer"] is None or parameter not in self.state:
            return
        state = self._prepared(group, parameter)
        # A weight that is 0 stays 0, and G has to wait for the next gradient anyway.
        indices = indices[parameter.index_select(0, indices) != 0]
        late = state["step"] - state["last"].index_select(0, indices)
        weight = _regularized(
            parameter.index_select(0, indices),
            state["sum"].index_select(0, indices),
            late,
            indices,
            *self._pending[parameter],
        )
        parameter.index_copy_(0, indices, weight)
        state["last"].index_fill_(0, indices, state["step"])

    @torch.no_grad()
    def flush(self) -> None:
        """Bring all coordinates of all parameters up to date; O(D)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.state:
                    self._flush(parameter, self._prepared(group, parameter))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state: plain numbers, strings and tensors.

        Regularisation that was put off stays put off: save the parameter as it is, too.
        """
        result = super().state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        state = {}
        for key, entry in result["state"].items():
            lr, regularizer, unregularized = self._pending[parameters[key]]
            state[key] = {
                "step": entry["step"],
                "sum": entry["sum"].clone(),
                "last": entry["last"].clone(),
                "lr": lr,
                "regularizer": repr(regularizer),
                "unregularized": unregularized,
            }
        groups = [
            {name: value for name, value in group.items() if name != "regularizer"}
            for group in result["param_groups"]
        ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave.

        The regulariser is never made from a file: this optimizer must have been built with
        the one that was in use.

        Raises
        ------
        ValueError
            The state is of another regulariser, longer than its parameter, or not whole.
        """
        saved = state_dict["state"]
        places = [(group, p) for group in self.param_groups for p in group["params"]]
        for key, entry in saved.items():
            if key < len(places):
                _check_state(entry, *places[key])
        regularizers = [group["regularizer"] for group in self.param_groups]
        # The base class replaces groups, and turns all tensors into the parameter's dtype:
        # `regularizer` is put back afterwards, and `last` goes around it.
        super().load_state_dict(
            {
                "state": {
                    key: {"step": entry["step"], "sum": entry["sum"].clone()}
                    for key, entry in saved.items()
                },
                "param_groups": state_dict["param_groups"],
            }
        )
        for group, regularizer in zip(self.param_groups, regularizers, strict=True):
            group["regularizer"] = regularizer
        self._pending.clear()
        for key, entry in saved.items():
            group, parameter = places[key]
            last = entry["last"].to(parameter.device, torch.int32, copy=True)
            self.state[parameter]["last"] = last
            settings = (entry["lr"], group["regularizer"], entry["unregularized"])
            self._pending[parameter] = settings

    def _step(
        self, group: dict[str, Any], parameter: Tensor, indices: Tensor, gradient: Tensor
    ) -> None:
        state = self._prepared(group, parameter)
        settings = self._pending[parameter]
        weight = parameter.index_select(0, indices)
        accumulated = state["sum"].index_select(0, indices)
        late = state["step"] - state["last"].index_select(0, indices)
        weight = _regularized(weight, accumulated, late, indices, *settings)
        accumulated.addcmul_(gradient, gradient)
        # Where G = 0, g is 0 too (or its square is, in floating point).
        update = torch.where(accumulated > 0, gradient / accumulated.sqrt(), 0)
        weight = _regularized(
            weight.sub_(update, alpha=settings[0]), accumulated, 1, indices, *settings
        )
        state["step"] += 1
        parameter.index_copy_(0, indices, weight)
        state["sum"].index_copy_(0, indices, accumulated)
        state["last"].index_fill_(0, indices, state["step"])

    def _prepared(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
        """Return the state of a parameter, made or lengthened, with its settings in force."""
        state: dict[str, Any] = self.state[parameter]
        length = parameter.numel()
        if not state:
            state["step"] = 0
            state["sum"] = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            state["last"] = torch.empty(0, dtype=torch.int32, device=parameter.device)
        if state["sum"].numel() < length:
            state["sum"] = lengthened(state["sum"], length, group["initial_accumulator"])
            state["last"] = lengthened(state["last"], length, state["step"])
        settings = _settings(group)
        if self._pending.setdefault(parameter, settings) != settings:
            self._flush(parameter, state)
            self._pending[parameter] = settings
        return state

    def _flush(self, parameter: Tensor, state: dict[str, Any]) -> None:
        settings = self._pending[parameter]
        for begin in range(0, parameter.numel(), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            weight, last = parameter[chunk], state["last"][chunk]
            indices = torch.arange(begin, begin + weight.numel(), device=weight.device)
            late = state["step"] - last
            weight.copy_(_regularized(weight, state["sum"][chunk], late, indices, *settings))
            last.fill_(state["step"])

    def _find(self, parameter: Tensor | None) -> tuple[dict[str, Any], Tensor]:
        """Return a parameter and its group."""
        all_of_them = [(group, p) for group in self.param_groups for p in group["params"]]
        if parameter is None:
            if len(all_of_them) > 1:
                raise ValueError(f"say which of the {len(all_of_them)} parameters is to catch up")
            return all_of_them[0]
        for group, candidate in all_of_them:
            if candidate is parameter:
                return group, candidate
        raise ValueError("this parameter is not one of the optimizer's")


def _settings(group: dict[str, Any]) -> tuple[float, Regularizer | None, int]:
    """Return what regularisation depends on."""
    return group["lr"], group["regularizer"], group["unregularized"]


def _regularized(
    weight: Tensor,
    accumulated: Tensor,
    times: Tensor | int,
    indices: Tensor,
    lr: float,
    regularizer: Regularizer | None,
    unregularized: int,
) -> Tensor:
    """Return weights after `times` proximal steps of size lr / √G, none where G = 0."""
    if regularizer is None:
        return weight
    free = (accumulated == 0) | (indices < unregularized)
    step = (lr / accumulated.sqrt() * times).masked_fill_(free, 0)
    return regularizer.prox(weight, step)


def _check_state(entry: dict[str, Any], group: dict[str, Any], parameter: Tensor) -> None:
    """Raise ValueError if the saved state of a parameter cannot be its state."""
    missing = {"step", "sum", "last", "lr", "regularizer", "unregularized"} - entry.keys()
    if missing:
        raise ValueError(f"the saved state lacks {sorted(missing)}: it is not AdaGrad's")
    if entry["regularizer"] != repr(group["regularizer"]):
        raise ValueError(
            f"the saved state is of regularizer {entry['regularizer']}, and this optimizer has "
            f"{group['regularizer']!r}: build it with the same"
        )
    if entry["sum"].shape != entry["last"].shape or entry["sum"].dim() != 1:
        raise ValueError("the saved state is damaged: its parts differ in length")
    if entry["sum"].numel() > parameter.numel():
        raise ValueError(
            f"the saved state has {entry['sum'].numel()} coordinates and the parameter "
            f"{parameter.numel()}: load the weights and their features first"
        )
