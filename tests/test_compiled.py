"""Compiled functions: their machine code is that of their sources, whole, and always usable."""

import ast
import importlib
import os
import pkgutil
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import numba
import numpy as np
import pytest
from numba.core.environment import Environment

from torchtune_smt.cli.hydra_main import error_line
from torchtune_smt.core import machine_code
from torchtune_smt.core.archive import well_formed
from torchtune_smt.core.compiled import Compiled, inner, kernel
from torchtune_smt.core.errors import KernelError
from torchtune_smt.core.machine_code import KEPT, MachineCode, kernel_sources, sources_of
from torchtune_smt.core.random_kernels import mix
from torchtune_smt.core.resources import PACKAGE


@kernel
def first(values: np.ndarray) -> float:
    return values[0]


@kernel
def counted(values: np.ndarray) -> float:
    return first(values)


@inner
def uncounted(values: np.ndarray) -> float:
    return inner_first(values)


@inner
def inner_first(values: np.ndarray) -> float:
    return values[0]


def test_this_numba_still_has_what_the_decorators_ask_of_it():
    """Says what to look at when the upper bound in pyproject.toml is raised."""
    advice = (
        f"numba {numba.__version__}: see torchtune_smt/core/compiled.py before raising its bound"
    )
    values = np.ones(3)
    assert counted(values) == uncounted(values) == 1
    (code,) = uncounted.inspect_llvm().values()
    assert "NRT_incref" not in code, f"_nrt=False has no effect any more; {advice}"
    fresh = numba.njit(mix.py_func)
    vars(fresh)["_cache"] = MachineCode(mix.py_func)
    assert mix(7) == fresh(7)
    assert sum(fresh.stats.cache_hits.values()) == 1, f"MachineCode is not asked; {advice}"


@pytest.mark.parametrize("kind", [ValueError, OSError])
@pytest.mark.parametrize("decorate", [kernel, inner])
def test_what_keeps_code_from_being_loaded_is_no_fault_of_the_input(decorate, kind):
    def load_overload(signature, target):
        raise kind("reason")

    def callee(x):
        return x + 1

    one = decorate(callee)
    vars(one.dispatcher)["_cache"] = Mock(load_overload=load_overload)
    two = decorate(lambda x: one(x))
    for function in (one, two):
        # Readers of files take the kinds above for damage to what they read.
        with pytest.raises(KernelError, match="callee .*reason") as caught, well_formed():
            function(3)
        assert error_line(caught.value).startswith("error: ")


def test_code_that_cannot_be_used_is_made_again(tmp_path: Path) -> None:
    for _ in range(2):
        fresh, code = numba.njit(mix.py_func), MachineCode(mix.py_func)
        code.cache_path = tmp_path
        vars(fresh)["_cache"] = code
        assert mix(7) == fresh(7)
        assert sum(fresh.stats.cache_hits.values()) == 0
        (path,) = tmp_path.iterdir()
        assert len(path.read_bytes()) > 1000
        path.write_bytes(machine_code._digest(b"of another") + b"of another")


def test_all_compiled_functions_are_in_the_files_that_are_hashed() -> None:
    sources = {str(path) for path in kernel_sources()}
    found = set()
    for info in pkgutil.walk_packages([str(PACKAGE)], "torchtune_smt."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, Compiled):
                found.add(value.py_func.__code__.co_filename)
                assert isinstance(vars(value.dispatcher)["_cache"], MachineCode), value
    assert found
    assert found <= sources


def imported_files(path):
    """Return the files of the package that a file imports, by its syntax."""
    files = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtune_smt"):
            # A name may be a module of its own: from torchtune_smt import x_kernels.
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            package = PACKAGE.parent / str(node.module).replace(".", "/")
            names = inside if package.is_dir() else [str(node.module)]
            files |= {PACKAGE.parent / (name.replace(".", "/") + ".py") for name in names}
    return files


def test_kernels_take_nothing_from_files_that_are_not_hashed() -> None:
    for path in kernel_sources():
        if path.name.endswith("kernels.py"):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            sources = set(sources_of(module))
            assert path in sources
            for source in sources:
                if source.name.endswith("kernels.py"):
                    assert imported_files(source) <= sources, f"{module} depends on {source}"


CALLEE = """
from torchtune_smt.core.compiled import kernel

@kernel
def callee(x):
    return x + 1
"""
CALLER = """
from torchtune_smt.callee_kernels import callee
from torchtune_smt.core.compiled import kernel

@kernel
def caller(x):
    return 10 * callee(x)
"""
CALL = "from torchtune_smt.caller_kernels import caller; print(caller(4), caller(0.5))"
HITS = "; print(sum(caller.stats.cache_hits.values()))"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with two small kernels more, and the folder of a cache beside it."""
    copy = tmp_path / "site" / "torchtune_smt"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "example"))
    (copy / "callee_kernels.py").write_text(CALLEE)
    (copy / "caller_kernels.py").write_text(CALLER)
    return copy


def start(package, code, **environment):
    places = {"NUMBA_CACHE_DIR": package.parent.parent / "cache", "PYTHONPATH": package.parent}
    env = {**os.environ, **{name: str(place) for name, place in places.items()}, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], cwd=package.parent, env=env, **pipes)


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.strip(), err


def run(package, code, **environment):
    out, err = finish(start(package, code, **environment))
    assert err == ""
    return out


@pytest.mark.slow
def test_code_is_that_of_all_its_sources_wherever_they_are(package: Path) -> None:
    assert run(package, CALL + HITS) == "50 15.0\n0"
    assert run(package, CALL + HITS) == "50 15.0\n2"
    # What is no callee of it may change too, without effect.
    (package / "lm" / "other_kernels.py").write_text(CALLEE)
    assert run(package, CALL + HITS) == "50 15.0\n2"
    callee = package / "callee_kernels.py"
    # Python knows a file that changes within a second by its size alone.
    callee.write_text(CALLEE.replace("x + 1", "x + 1 + 1"))
    assert run(package, CALL + HITS) == "60 25.0\n0"
    callee.write_text(CALLEE)
    package.parent.rename(package.parent.with_name("elsewhere"))
    moved = package.parent.with_name("elsewhere") / package.name
    assert run(moved, CALL + HITS) == "50 15.0\n2"
    # Bounds checks have code of their own.
    assert run(moved, CALL + HITS, NUMBA_BOUNDSCHECK="1") == "50 15.0\n0"
    assert run(moved, CALL, NUMBA_DISABLE_JIT="1") == "50 15.0"


def test_no_flipped_bit_or_cut_end_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "cache_folder", lambda module: tmp_path)
    cache = MachineCode(mix.py_func)
    fresh = numba.njit(mix.py_func)
    vars(fresh)["_cache"] = cache
    fresh(7)
    ((signature, compiled),) = fresh.overloads.items()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    generator = random.Random(0)
    for case in range(500):
        damaged = bytearray(whole)
        place = generator.randrange(len(whole))
        if case % 5 == 0:
            del damaged[place:]
        else:
            damaged[place] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        assert cache.load_overload(signature, fresh.targetctx) is None, (case, place)
        assert not path.exists()
    cache.save_overload(signature, compiled)
    assert path.read_bytes() == whole
    assert cache.load_overload(signature, fresh.targetctx).signature == compiled.signature


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_disturb_each_other(package: Path) -> None:
    calls = ["caller(4)", "caller(1j)"]
    load = "from torchtune_smt.caller_kernels import caller"
    processes = [start(package, f"{load}; print({call})") for call in calls for _ in range(2)]
    results = [finish(process)[0] for process in processes]
    assert results == ["50", "50", "(10+10j)", "(10+10j)"]
    assert run(package, f"{load}; print({', '.join(calls)})" + HITS) == "50 (10+10j)\n2"


@pytest.mark.slow
def test_an_unwritable_home_does_no_harm(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    nowhere = {"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": str(file)}
    here = {**nowhere, "TMPDIR": str(temporary)}
    assert run(package, CALL + HITS, **here) == "50 15.0\n0"
    assert run(package, CALL + HITS, **here) == "50 15.0\n2"


def test_numba_keeps_environments_as_they_are_read() -> None:
    """Otherwise kernels that are there import, again, what they were compiled with."""
    environment = Environment({"__name__": "here"})
    environment.env_name = "one"
    made, arguments = environment.__reduce__()
    assert (made.__module__, made.__name__) == (Environment.__module__, "_rebuild_env")
    assert arguments == ("here", [], "one")


def test_the_users_folder_is_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = machine_code.cache_folder.__wrapped__
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    module = "torchtune_smt.core.random_kernels"
    name = machine_code.state(module)
    assert where(module) == tmp_path / "xdg" / "torchtune_smt" / name
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "own"))
    assert where(module) == tmp_path / "own" / "torchtune_smt" / name
    # One that others can write to is not.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for place, other in (
        ("own", tmp_path / "xdg" / "torchtune_smt"),
        ("xdg", tmp_path / f"torchtune_smt-{os.getuid()}"),
    ):
        (tmp_path / place / "torchtune_smt").chmod(0o775)
        with pytest.warns(RuntimeWarning, match=f"{place}/torchtune_smt: it must be a folder"):
            assert where(module) == other / name


def test_folders_unused_for_longest_are_removed(tmp_path, monkeypatch):
    where = machine_code.cache_folder.__wrapped__
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    base = tmp_path / "torchtune_smt"
    (base / "something else").mkdir(parents=True)
    names = [f"{i:032x}" for i in range(KEPT + 3)]
    for time, name in enumerate(names):
        monkeypatch.setattr(machine_code, "state", lambda module, name=name: name)
        assert where("") == base / name
        (base / name / "x.code").write_bytes(b"")
        os.utime(base / name, (time, time))
        if time == KEPT - 1:
            monkeypatch.setattr(machine_code, "state", lambda module: names[0])
            where("")  # The first one is in use.
    kept = {path.name for path in base.iterdir()}
    assert kept == {"something else", names[0], *names[-KEPT + 1 :]}
