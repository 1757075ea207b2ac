"""Decorators of compiled functions, and what they make of a function.

numba is imported when the first of them is called, or looked into: an import of kernels costs no
more than that of their source.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial, update_wrapper
from typing import Any, TypeVar, cast

from torchtune_smt.core.errors import KernelError

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


class Compiled:
    """A function that is compiled when it is first called.

    To numba, and to whoever asks for its attributes, it is what numba makes of it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function, self._options = function, options

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of it; with NUMBA_DISABLE_JIT, the function itself."""
        from numba import njit
        from numba.core.dispatcher import Dispatcher

        from torchtune_smt.core.machine_code import MachineCode

        compiled = njit(nogil=True, **self._options)(self._function)
        if isinstance(compiled, Dispatcher):
            vars(compiled)["compile"] = partial(_compiled, compiled)
            if self._function.__module__.startswith("torchtune_smt."):
                vars(compiled)["_cache"] = MachineCode(self._function)
            else:
                compiled.enable_caching()
        # From now on a call is that of the dispatcher, without a detour through Python.
        own: Any = type(self)
        own.__call__ = staticmethod(compiled)
        return compiled

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Compile, and call."""
        return self.dispatcher(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatcher, name)

    def __reduce__(self) -> Any:
        """Pickle what numba makes of it, which knows how; so does numba, with code of callers."""
        return _same, (self.dispatcher,)


def _same(dispatcher: Any) -> Any:
    return dispatcher


def _compile(function: Function, **options: Any) -> Function:
    # Each has a class of its own, for its own way of being called.
    return cast(Function, type("Compiled", (Compiled,), {})(function, options))


def _compiled(dispatcher: Any, signature: Any) -> Any:
    """Load or make the code for a signature: where it is first called, no error is the input's."""
    from numba.core.errors import NumbaError

    try:
        return type(dispatcher).compile(dispatcher, signature)
    except (KernelError, MemoryError, NumbaError):
        raise
    except Exception as error:
        raise KernelError(
            f"the compiled code of {dispatcher.py_func.__qualname__} cannot be loaded or made "
            f"({type(error).__name__}: {error}); set NUMBA_CACHE_DIR to an empty folder of your own"
        ) from error
