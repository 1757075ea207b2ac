"""Ctrl-C and SIGTERM end every command with one line, at any moment."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import MODEL

from torchtune_smt.core.stopping import (
    Stopped,
    advice_when_stopped,
    raise_if_stopped,
    run_stoppable,
)

SIGNALS = [signal.SIGINT, signal.SIGTERM]
TUNE = [
    *MODEL,
    *["data.test=null", "tuner.epochs=40", "tuner.patience=null", "tuner.checkpoint_minutes=0"],
    *["decoder.k=10", "decoder.pop_limit=5", "threads=1"],
]


@pytest.fixture(autouse=True)
def handlers():
    """Those of the tests, which get them back; Ctrl-C interrupts in the background, too."""
    before = [signal.getsignal(s) for s in SIGNALS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield [signal.default_int_handler, before[1]]
    for s, handler in zip(SIGNALS, before, strict=True):
        signal.signal(s, handler)


def python(*arguments, cwd, path="."):
    """Run Python, with a folder of modules before all others; return code, and what it says."""
    paths = os.pathsep.join([str(path), str(Path(__file__).parent.parent)])
    env, command = {**os.environ, "PYTHONPATH": paths}, [sys.executable, *arguments]
    given = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run(command, cwd=cwd, env=env, check=False, **given)
    return done.returncode, done.stdout, done.stderr


def interrupt(number):
    os.kill(os.getpid(), number)
    time.sleep(1)


@pytest.fixture(params=SIGNALS, ids=lambda number: number.name)
def number(request):
    return signal.Signals(request.param)


@pytest.mark.parametrize("error", [None, SystemError, ImportError, SystemExit])
def test_whatever_exception_an_interrupt_becomes(number, error, capsys):
    def command():
        try:
            interrupt(number)
        except Stopped:
            if error is not None:
                raise error("out of C code") from None
            raise
        return 0

    assert run_stoppable("name", command) == 128 + number
    assert capsys.readouterr().err == "name: stopped\n"
    # All is over: a second Ctrl-C shows nothing more.
    assert [signal.getsignal(s) for s in SIGNALS] == [signal.SIG_IGN] * 2


@pytest.mark.parametrize("kind", ["advised", "dropped"])
def test_what_is_said_of_a_stop(kind, capsys):
    """Advice from the inside wins; an interrupt that a finaliser drops comes again."""

    class Dropping:
        def __del__(self):
            interrupt(signal.SIGINT)

    def command():
        if kind == "advised":
            with advice_when_stopped(lambda: "outer"), advice_when_stopped(lambda: "go on with x"):
                interrupt(signal.SIGINT)
        Dropping()
        for _ in range(1000):
            time.sleep(0.01)
        return 0

    assert run_stoppable("name", command) == 130
    said = {"advised": "; go on with x", "dropped": ""}[kind]
    assert capsys.readouterr().err == f"name: stopped{said}\n"
    try:
        raise_if_stopped()
    except Stopped:
        pytest.fail("an error of whatever comes next in this process would be a stop")


def test_without_a_signal_all_stays_as_it_is(handlers, capsys):
    def command():
        with advice_when_stopped(lambda: "never said"):
            raise SystemError("a bug")

    with pytest.raises(SystemError, match="a bug"):
        run_stoppable("name", command)
    assert run_stoppable("name", lambda: 3) == 3
    assert [signal.getsignal(s) for s in SIGNALS] == handlers
    assert capsys.readouterr().err == ""
    # In another thread than the main one, too; and ignored signals stay ignored.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run_stoppable, "name", lambda: 5).result() == 5
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert run_stoppable("name", lambda: os.kill(os.getpid(), signal.SIGINT) or 7) == 7


@pytest.mark.parametrize(
    ("name", "number"),
    [*zip(["train", "translate", "resume", "get-data"], SIGNALS * 2, strict=True)],
    indirect=["number"],
)
def test_while_modules_are_imported(name, number, repository, tmp_path):
    """Of the console's command by Ctrl-C, and of the script by the other signal."""
    modules = {"get-data": "torchtune_smt.data.corpora", "translate": "hydra.main"}
    module = modules.get(name, "torch")
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
            import os, sys
            class Finder:
                def find_spec(self, name, path, target=None):
                    if name == {module!r}:
                        os.kill(os.getpid(), {int(number)})
            sys.meta_path.insert(0, Finder())
        """)
    )
    more, said = (["resume=a run"], "; go on with resume='a run'") if name == "resume" else ([], "")
    name = "train" if name == "resume" else name
    place = tmp_path / "place"
    place.mkdir()
    script = "train.py" if name == "train" else f"scripts/{name.replace('-', '_')}.py"
    console = "import sys; from torchtune_smt.cli import main; sys.exit(main())"
    command = ["-c", console, name] if number == signal.SIGINT else [repository / script]
    done = python(*command, *more, cwd=place, path=tmp_path)
    assert done == (128 + number, "", f"torchtune-smt {name}: stopped{said}\n")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM], ids=str, indirect=True)
def test_while_a_kernel_runs_that_returns_a_named_tuple(number, tmp_path):
    (tmp_path / "run.py").write_text(
        textwrap.dedent(f"""
            import os, sys, threading
            from typing import NamedTuple
            import numpy as np
            from numba import njit
            from torchtune_smt.core.stopping import run_stoppable
            class Pair(NamedTuple):
                first: np.ndarray
                second: np.ndarray
            @njit(nogil=True)
            def kernel(n):
                x = np.zeros(2)
                for i in range(n):
                    x[i % 2] += np.sqrt(i + x[0])
                return Pair(x, x)
            def command():
                kernel(1)
                threading.Timer(0.05, os.kill, (os.getpid(), {int(number)})).start()
                kernel(30_000_000)
                kernel(1)
                print("went on")
                return 0
            sys.exit(run_stoppable("name", command))
        """)
    )
    assert python("run.py", cwd=tmp_path) == (128 + number, "", "name: stopped\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT], ids=str, indirect=True)
def test_while_kernels_are_loaded(number, repository, tmp_path):
    (tmp_path / "run.py").write_text(
        textwrap.dedent(f"""
            import os, sys, time
            from torchtune_smt.core import machine_code
            from torchtune_smt.cli import main
            load, calls = machine_code.MachineCode.load_overload, []
            def loading(*arguments):
                calls.append(0)
                if len(calls) == 4:
                    os.kill(os.getpid(), {int(number)})
                    time.sleep(1)
                return load(*arguments)
            machine_code.MachineCode.load_overload = loading
            sys.exit(main(["train", *{TUNE!r}]))
        """)
    )
    code, _, err = python("run.py", cwd=tmp_path)
    assert code == 128 + number
    assert re.fullmatch(r"torchtune-smt train: stopped(; there is nothing to resume yet)?\n", err)
    assert not list(tmp_path.rglob("*.part"))
