"""What a regulariser is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Final, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchtune_smt.core.accepts import declared, least
from torchtune_smt.core.checks import described
from torchtune_smt.core.errors import DivergenceError, InputError

STRENGTH: Final = least(0)
"""What the strength of a penalty may be."""


class Regularizer(Protocol):
    """A penalty Ω on the weights, with the facts that optimizers ask for.

    Regularisers are values: frozen dataclasses, equal if their parameters are. A weight that is
    0 stays 0 in the prox, whatever the others are. A subclass with a `value` or `prox` of its own
    says anew which of these facts are true of it: those of its parent do not count.

    separable: Ω is a sum over single coordinates, so each may have a step of its own.
    lazy: prox_{aΩ}(prox_{bΩ}(w)) = prox_{(a+b)Ω}(w): steps may be put off and taken as one.
    separable_by_rows: Ω is a sum over rows (along the first dimension), so each of them may have a
        step of its own; it need not be separable.
    elastic: (λ1, λ2) where Ω(w) = λ1 Σ |w_i| + ½ λ2 Σ w_i². Optimizers then put steps off although
        Ω need not be lazy; a regulariser without it is not of this form.
    """

    separable: ClassVar[bool]
    lazy: ClassVar[bool]

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor, for weights of any shape."""
        ...

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return argmin_v ½‖v - w‖² + step · Ω(v) as a new tensor.

        Those of this package know their gradients, and raise ValueError where a weight or a step
        is not finite, or a step is negative.

        weights: where Ω is not separable, a vector, dense or sparse (COO, coalesced): of a sparse
            one the result is sparse, too, with the same indices.
        step: it may be a tensor of the shape of `weights` where Ω is separable, and [rows, 1, ...]
            where it is so by rows.
        """
        ...


def check_regularizer(regularizer: object) -> None:
    """Raise TypeError if an object, perhaps of a user's class, is no regulariser."""
    if isinstance(regularizer, type):
        name = regularizer.__name__
        raise TypeError(f"the regularizer is the class {name}: give an object, such as {name}()")
    for needed, meaning in {
        "value": "value(self, weights) returns the penalty",
        "prox": "prox(self, weights, step) returns the weights after a proximal step",
        "separable": "it is True if the penalty is a sum over single weights",
        "lazy": "it is True if two proximal steps equal one of the summed size",
    }.items():
        if not hasattr(regularizer, needed):
            name = type(regularizer).__name__
            raise TypeError(f"the regularizer {name} lacks {needed}: {meaning}")


def is_separable(regularizer: Regularizer) -> bool:
    """Say whether Ω is known to be a sum over single coordinates."""
    return bool(_fact(regularizer, "separable"))


def is_separable_by_rows(regularizer: Regularizer) -> bool:
    """Say whether Ω is known to be a sum over rows, as one over single coordinates is."""
    return is_separable(regularizer) or bool(_fact(regularizer, "separable_by_rows"))


def is_lazy(regularizer: Regularizer) -> bool:
    """Say whether two proximal steps are known to equal one of the summed size."""
    return bool(_fact(regularizer, "lazy"))


def elastic_strengths(regularizer: Regularizer | None) -> tuple[float, float] | None:
    """Return (λ1, λ2) of a regulariser of the form λ1 Σ |w_i| + ½ λ2 Σ w_i²; None of another."""
    if regularizer is None:
        return 0.0, 0.0
    found: tuple[float, float] | None = _fact(regularizer, "elastic")
    return None if found is None else (float(found[0]), float(found[1]))


UNCHECKED: ContextVar[bool] = ContextVar("UNCHECKED", default=False)
"""Whether the proxes of this package take numbers as they are: to look would wait for a device."""


@contextmanager
def unchecked(whether: bool) -> Iterator[None]:
    """Set `UNCHECKED` for a while."""
    before = UNCHECKED.set(whether)
    try:
        yield
    finally:
        UNCHECKED.reset(before)


def proximal(
    regularizer: Regularizer, weights: Tensor, step: Tensor | float, checked: bool = True
) -> Tensor:
    """Return `Regularizer.prox`, perhaps of a user's class: of a sparse vector its values.

    checked: whether it is looked at whether numbers are finite, which waits for a device.
    """
    with unchecked(not checked):
        found: Any = regularizer.prox(weights, step)
    name = type(regularizer).__name__
    if not isinstance(found, Tensor) or found.shape != weights.shape:
        raise InputError(
            f"the prox of {name} must return a tensor of the shape of the weights, "
            f"{tuple(weights.shape)}, and returned {described(found)}"
        )
    if not weights.is_sparse:
        return found
    size = weights._nnz()
    if not found.is_sparse or found._nnz() != size:
        given = f"with {found._nnz()}" if found.is_sparse else "which is dense"
        raise InputError(
            f"{name} is not separable, and its prox is given a sparse vector (COO) of the {size} "
            "weights that are not 0: it must return one with the same indices, and returned one "
            f"{given}"
        )
    # Nobody need say that it is coalesced: indices are those of the weights.
    values: Tensor = found._values()
    return values


# Whether what a class says counts; to look takes longer than a step on some hundred rows.
_COUNTS: WeakKeyDictionary[type, dict[str, bool]] = WeakKeyDictionary()


def _fact(regularizer: Regularizer, name: str) -> Any:
    if not {name, "value", "prox"}.isdisjoint(getattr(regularizer, "__dict__", ())):
        return declared(regularizer, name, "value", "prox")
    known = _COUNTS.setdefault(type(regularizer), {})
    if name not in known:
        known[name] = declared(regularizer, name, "value", "prox") is not None
    return getattr(regularizer, name) if known[name] else None


def check_weights(weights: Tensor, known: bool = False) -> None:
    """Raise ValueError unless weights are of floating point, and DivergenceError unless finite.

    known: that one is not finite, so that to look costs nothing.
    """
    if not weights.is_floating_point():
        raise ValueError(f"the prox is of floating-point weights, not of {weights.dtype}")
    if UNCHECKED.get() and not known:
        return
    weights = unwrapped(weights)
    finite = weights.isfinite()
    if not finite.all():
        where = int((~finite).reshape(-1).nonzero()[0])
        weight = weights.reshape(-1)[where].item()
        raise DivergenceError(
            f"weight {where} of the prox is {weight}, not finite: check the feature values, and "
            "lower the learning rate if there is one"
        )


def unwrapped(tensor: Tensor) -> Tensor:
    """Return a tensor of whose numbers one can ask, as one of `torch.vmap` or `torch.func` is."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def given_dimension_error(dimension: int, of: str, count: int) -> InputError:
    """Return the error for a d that is given, and smaller than what it must count."""
    return InputError(
        f"regularizer.dimension={dimension} is smaller than the number of {of}, {count}: their "
        "penalties would be negative; give at least as much, or null"
    )


def dimension_error(dimension: int, active: int | str) -> InputError:
    """Return the error for more weights that are not 0 than there are dimensions."""
    return InputError(
        f"OSCAR's dimension is {dimension}, and {active} weights are not 0: penalties would be "
        "negative; set regularizer.dimension to the number of features that may ever be met"
    )
