"""Decorators of compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_INNER: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}


def inner(function: Function) -> Function:
    """Compile a function that is called from loops and allocates nothing.

    numba counts references to array arguments at each call, atomically: cube pruning spent half
    its time on that. Without its runtime (``_nrt``) it does not; such a function can make no
    arrays.
    """
    return cast(Function, njit(**_INNER)(function))


def wide(function: Function) -> Function:
    """Compile an `inner` function whose loop is to work on several numbers at once.

    Maxima and comparisons of floats may then take any order, which is right without NaN. For the
    same reason such a loop should have no branches, and run over arrays from 0.
    """
    return cast(Function, njit(**_INNER, fastmath={"nnan", "nsz"})(function))


def inlined(function: Function) -> Function:
    """Compile a function as `inner` does, always into the code of its callers.

    For small functions with many arrays: a call hands over each with all its shape and strides.
    """
    return cast(Function, njit(**_INNER, forceinline=True)(function))
