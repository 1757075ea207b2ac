"""Decorators of compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from torchtune_smt.core.errors import KernelError
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
        vars(compiled)["compile"] = partial(_compiled, compiled)
        if function.__module__.startswith("torchtune_smt."):
            vars(compiled)["_cache"] = MachineCode(function)
        else:
            compiled.enable_caching()
    return cast(Function, compiled)


def _compiled(dispatcher: Dispatcher, signature: Any) -> Any:
    """Load or make the code for a signature: where it is first called, no error is the input's."""
    try:
        return Dispatcher.compile(dispatcher, signature)
    except (KernelError, MemoryError, NumbaError):
        raise
    except Exception as error:
        raise KernelError(
            f"the compiled code of {dispatcher.py_func.__qualname__} cannot be loaded or made "
            f"({type(error).__name__}: {error}); set NUMBA_CACHE_DIR to an empty folder of your own"
        ) from error
