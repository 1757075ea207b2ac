"""Decorators of compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def inner(function: Function) -> Function:
    """Compile a function that is called from loops and allocates nothing.

    numba counts references to array arguments at each call, atomically: cube pruning spent half
    its time on that. Without its runtime (``_nrt``) it does not; such a function can make no
    arrays.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
    return cast(Function, njit(**options)(function))
