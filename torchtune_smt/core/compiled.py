"""Decorators of compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.dispatcher import Dispatcher

from torchtune_smt.core.machine_code import MachineCode

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function, which then runs without the GIL.

    Machine code of this package is kept until the source of any of its kernels changes; functions
    from elsewhere have numba's own cache.
    """
    return _compile(function)


def inner(function: Function) -> Function:
    """Compile a function that is called from loops and allocates nothing.

    numba counts references to array arguments at each call, atomically: cube pruning spent half
    its time on that. Without its runtime (``_nrt``) it does not; such a function can make no
    arrays.
    """
    return _compile(function, _nrt=False)


def wide(function: Function) -> Function:
    """Compile an `inner` function whose loop is to work on several numbers at once.

    Maxima and comparisons of floats may then take any order, which is right without NaN. For the
    same reason such a loop should have no branches, and run over arrays from 0.
    """
    return _compile(function, _nrt=False, fastmath={"nnan", "nsz"})


def inlined(function: Function) -> Function:
    """Compile a function as `inner` does, always into the code of its callers.

    For small functions with many arrays: a call hands over each with all its shape and strides.
    """
    return _compile(function, _nrt=False, forceinline=True)


def _compile(function: Function, **options: Any) -> Function:
    compiled = njit(nogil=True, **options)(function)
    # With NUMBA_DISABLE_JIT it is the function itself.
    if isinstance(compiled, Dispatcher):
        if function.__module__.startswith("torchtune_smt."):
            vars(compiled)["_cache"] = MachineCode(function)
        else:
            compiled.enable_caching()
    return cast(Function, compiled)
