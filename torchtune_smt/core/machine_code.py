"""The cache of compiled kernels: a folder for each state of their sources, a file for each kernel.

A folder is that of the functions of one file, as this file and all that they call stand.

numba's own cache is not used. It knows a function by its own file alone, so that a caller keeps the
old code of a function that has changed in another file. It trusts what it reads, and machine code
with a flipped bit runs. And of two processes that write its index at once, one may leave the code
of one signature under another.

Like ``__pycache__``, the folder holds code: it is taken from folders alone that are the user's own,
and that nobody else may write to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import pickle
import re
import shutil
import stat
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba.core import compiler
from numba.core.environment import Environment
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from torchtune_smt.core.resources import PACKAGE

_logger = logging.getLogger(__name__)

# numba's types are not for others to check.
_config: Final[Any] = numba.config
_CompileResult: Final[Any] = compiler.CompileResult
_dumps: Final[Any] = dumps
_Environment: Final[Any] = Environment

# Folders that stay when a new one is made, the last used ones. An installation has about fifty, and
# other versions and environments have theirs.
KEPT: Final = 400

# What else of numba's settings changes the code; the processor stands in the key of each file.
_SETTINGS: Final = (
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_FLAGS",
    "LLVM_REFPRUNE_PASS",
    "LOOP_VECTORIZE",
    "OPT",
    "SLP_VECTORIZE",
)
_DIGEST: Final = 16

# What decides how functions are compiled, and what an import of kernels looks like.
_BASE: Final = tuple(
    PACKAGE / "core" / f"{name}.py" for name in ("compiled", "arrays", "machine_code")
)
_KERNELS: Final = re.compile(rb"\w*kernels\b")


@functools.cache
def kernel_sources() -> tuple[Path, ...]:
    """Return the files with compiled functions, and those that decide how they are compiled."""
    return (*_BASE, *sorted(PACKAGE.rglob("*kernels.py")))


def sources_of(module: str) -> list[Path]:
    """Return the files that the machine code of a module's functions depends on, sorted.

    They are the module itself, the kernels that it names, those that these name, and so on, and
    the files that decide how all are compiled. To mention a file in a comment is to name it.
    """
    found = set(_BASE)
    left = [PACKAGE.parent / f"{module.replace('.', '/')}.py"]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += _read(path)[1]
    return sorted(found)


def state(module: str) -> str:
    """Return a hash of all that machine code depends on: sources, versions, settings of numba."""
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
    settings = [(name, repr(getattr(_config, name, None))) for name in _SETTINGS]
    sources = [(str(path.relative_to(PACKAGE)), _read(path)[0]) for path in sources_of(module)]
    return _digest(repr((module, versions, settings, sources)).encode()).hex()


@functools.cache
def _read(path: Path) -> tuple[bytes, list[Path]]:
    """Return the hash of a file, and the files of kernels that it names."""
    source = path.read_bytes()
    named = set(_KERNELS.findall(source))
    return _digest(source), [other for other in kernel_sources() if other.stem.encode() in named]


@functools.cache
def cache_folder(module: str) -> Path | None:
    """Return the folder of a module's machine code in this state, made if need be.

    None is returned, after a warning, if no place for it can be written.

    It lies below ``NUMBA_CACHE_DIR`` if that is set, else below the user's folder of caches, else
    below a folder of the user's own among the temporary ones.
    """
    name = state(module)
    for base in _bases():
        folder = base / name
        try:
            new = not folder.exists()
            base.parent.mkdir(parents=True, exist_ok=True)
            for made in (base, folder):
                made.mkdir(mode=0o700, exist_ok=True)
            if not (_is_own(base) and _is_own(folder)):
                warnings.warn(
                    f"compiled kernels are not taken from {base}: it must be a folder of your own "
                    "that nobody else may write to (chmod -R go-w)",
                    RuntimeWarning,
                    stacklevel=2,
                )
                continue
            # One that can only be read serves if the user has filled it.
            if not os.access(folder, os.W_OK) and not any(folder.iterdir()):
                continue
        except OSError:
            continue
        with contextlib.suppress(OSError):
            os.utime(folder)
        if new:
            _remove_old(base)
        return folder
    warnings.warn(
        "no folder for compiled kernels can be written, so they are compiled at every start, which "
        "takes a minute or two: set NUMBA_CACHE_DIR to a folder that you may write to",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


class MachineCode:
    """What numba asks for the code of one function, in the place of its own cache.

    function: a function of one of the `kernel_sources`.
    """

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"
        self.cache_path = cache_folder(function.__module__)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled function for a signature, or None; a damaged file is deleted."""
        # All that code which is there needs. To gather what numba compiles with takes half a
        # second, and is done where something is compiled.
        rtsys.initialize(target)
        path = self._path(signature, target.codegen())
        payload = None if path is None else _own_content(path)
        # What is whole and cannot be used all the same is compiled again.
        with contextlib.suppress(Exception):
            if payload is not None:
                return _CompileResult._rebuild(target, *_Loader(io.BytesIO(payload)).load())
        _announce()
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep the code for a signature; what cannot be written is compiled again next time."""
        path = self._path(signature, compiled.codegen)
        if path is None or compiled.library.has_dynamic_globals:
            return
        payload = _dumps(compiled._reduce())
        beside = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            # Another process may have taken the folder for an old one.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as file:
                file.write(_digest(payload) + payload)
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()

    def flush(self) -> None:
        """Leave files as they are: what numba compiles again replaces them."""

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        if self.cache_path is None:
            return None
        key = repr((self._name, signature, codegen.magic_tuple()))
        name = hashlib.blake2b(key.encode(), digest_size=_DIGEST).hexdigest()
        return self.cache_path / f"{self._name.rpartition('.')[2]}-{name}.code"


class _Loader(pickle.Unpickler):
    """Reads what is kept of a function, without importing what it was compiled with."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for."""
        own = {"_rebuild_env": _environment}
        found = own.get(name) if module == Environment.__module__ else None
        return super().find_class(module, name) if found is None else found


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """Return the constants of a function of a module; nothing else is read of an environment.

    numba's own imports the module, and those of its arrays import half of scipy.
    """
    found = _Environment._memo.get(name)
    if found is None:
        found = _Environment._memo[name] = Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
    return found


@functools.cache
def _announce() -> None:
    """Say to whoever waits, before the first kernel is compiled, what takes so long."""
    if sys.stderr is not None and sys.stderr.isatty():
        _logger.info("compiling kernels, once for this version: a minute or two")


def _own_content(path: Path) -> bytes | None:
    """Return the code in a file of the user's own; None if there is none that is whole."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_private(status):
                return None
            content = file.read()
    except OSError:
        return None
    if _digest(content[_DIGEST:]) == content[:_DIGEST]:
        return content[_DIGEST:]
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _is_own(folder: Path) -> bool:
    """Return whether a folder, and not what a link leads to, is one that only the user fills."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and _is_private(status)


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST).digest()


def _bases() -> Iterator[Path]:
    """Yield the folders that may hold those of all states, best first."""
    if _config.CACHE_DIR:
        yield Path(_config.CACHE_DIR) / "torchtune_smt"
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(caches):
        yield Path(caches) / "torchtune_smt"
    yield Path(tempfile.gettempdir()) / f"torchtune_smt-{os.getuid()}"


def _remove_old(base: Path) -> None:
    """Remove the folders that were not used for longest; a process that uses one compiles anew."""
    with contextlib.suppress(OSError):
        folders = [path for path in base.iterdir() if len(path.name) == 2 * _DIGEST]
        for path in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)
