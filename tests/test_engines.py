"""Engines: results in order, whatever happens to workers."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_workers import OpenToy

from torchtune_smt.core.errors import InputError
from torchtune_smt.parallel import local
from torchtune_smt.parallel.engine import InProcess
from torchtune_smt.parallel.local import LocalEngine

PLAIN = [(n, "") for n in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="module")
def engine(folder):
    engine = LocalEngine(workers=2, deadline=20)
    engine.serve(OpenToy(folder))
    yield engine
    engine.close()


def gone(pid):
    """Whether a process ends soon."""
    for _ in range(200):
        try:
            if ") Z" in Path(f"/proc/{pid}/stat").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_results_are_in_the_order_of_tasks(engine, folder):
    here = InProcess()
    here.serve(OpenToy(folder))
    tasks = [(n, "slow" if n in (0, 5) else "") for n in range(9)]
    expected = [value for value, _ in here.map(7, tasks)]
    results = list(engine.map(7, tasks))
    assert [value for value, _ in results] == expected == [7 * n for n in range(9)]
    assert os.getpid() not in {pid for _, pid in results}
    # Another common part, the same workers.
    again = list(engine.map(3, PLAIN))
    assert [value for value, _ in again] == [3 * n for n in range(9)]
    assert {pid for _, pid in again} <= {pid for _, pid in results}
    assert list(engine.map(3, [])) == []


def test_a_worker_is_given_what_it_had_before(engine):
    tasks = [(n, "meet") for n in range(2)]
    pids = [pid for _, pid in engine.map(101, tasks)]
    assert pids[0] != pids[1]
    for common in (102, 103):
        engine._processes.reverse()
        assert [pid for _, pid in engine.map(common, tasks)] == pids


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("kill once", "a worker died (exit code -9); another takes"),
        # The process that it leaves holds the other end of its pipe.
        ("fork and die once", "a worker died (exit code -9)"),
        ("hang once", "a worker took more than 2 s (engine.deadline)"),
    ],
)
def test_a_worker_that_is_lost_is_replaced(what, said, engine, folder, capsys):
    if what == "hang once":
        engine = LocalEngine(workers=1, deadline=2)
        engine.serve(OpenToy(folder))
    tasks = [(n, what if n in (1, 3) else "") for n in range(5)]
    assert [value for value, _ in engine.map(5, tasks)] == [5 * n for n in range(5)]
    assert capsys.readouterr().err.count(said) == 2
    # Idle ones are replaced, too.
    for pid in {pid for _, pid in engine.map(1, PLAIN)}:
        os.kill(pid, signal.SIGKILL)
    assert [value for value, _ in engine.map(2, PLAIN)] == [2 * n for n in range(9)]
    if what == "hang once":
        engine.close()
    for child in folder.glob("child*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child.name.removeprefix("child")), signal.SIGKILL)


@pytest.mark.parametrize("task", [(0, "", b"x" * (4 << 20)), (0, "long")])
def test_a_worker_that_stops_within_a_message_is_replaced(folder, task, monkeypatch, capsys):
    """Of a long message a pipe takes a part, and the rest when somebody reads."""
    engine = LocalEngine(workers=1, deadline=2)
    engine.serve(OpenToy(folder))
    ((_, pid),) = engine.map(5, [(1, "")])
    receive = local._Process.receive

    def stopped(process):
        if process.process.pid == pid:
            # What is on its way by then is not all.
            time.sleep(0.3)
            os.kill(pid, signal.SIGSTOP)
        return receive(process)

    if task[1] == "long":
        monkeypatch.setattr(local._Process, "receive", stopped)
    else:
        os.kill(pid, signal.SIGSTOP)
    assert [value for value, *_ in engine.map(5, [task])] == [0]
    assert "a worker took more than 2 s (engine.deadline)" in capsys.readouterr().err
    engine.close()


def test_a_task_that_kills_all_its_workers(engine):
    results = engine.map(1, [(0, ""), (1, "kill"), (2, "")])
    assert next(results)[0] == 0
    with pytest.raises(InputError, match="3 workers were lost over one task.*exit code -9"):
        next(results)
    # Others can still be computed.
    assert [value for value, _ in engine.map(1, PLAIN)] == list(range(9))


def test_losses_before_workers_are_open_count_one_after_the_other(tmp_path):
    engine = LocalEngine(workers=1, attempts=2)
    engine.serve(OpenToy(tmp_path, dying=(0, 2)))
    assert [value for value, _ in engine.map(5, [(1, "kill once"), (2, "")])] == [5, 10]
    engine.close()


def test_errors_come_here(engine, folder):
    for what, kind, said in (
        ("bad", InputError, "^file:3: is bad; make it good$"),
        ("bug", RuntimeError, "KeyError: 'a bug'"),
        # It is none of the pipe to the driver.
        ("end", RuntimeError, "EOFError: no more"),
        # The exit code is the worker's own.
        ("exit", InputError, r"died \(exit code 7\)"),
    ):
        with pytest.raises(kind, match=said):
            list(engine.map(1, [(0, what)]))
    hanging = LocalEngine(workers=1, deadline=1, attempts=2)
    hanging.serve(OpenToy(folder, seconds=1000))
    with pytest.raises(InputError, match=r"2 workers were lost .* took more than 1 s \(engine.de"):
        list(hanging.map(5, PLAIN))
    hanging.close()


def test_nobody_computes_what_nobody_asks_for(tmp_path):
    engine = LocalEngine(workers=1)
    engine.serve(OpenToy(tmp_path))
    results = engine.map(1, [(0, ""), (1, "wait")])
    next(results)
    while not (found := list(tmp_path.glob("waiting*"))):
        time.sleep(0.02)
    results.close()
    assert gone(int(found[0].name.removeprefix("waiting")))


DRIVER = """
import os, random, signal, sys, threading, time
from pathlib import Path
from toy_workers import OpenToy
from torchtune_smt.parallel.local import LocalEngine

folder, dying = Path(sys.argv[1]), len(sys.argv) > 2

def die(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__mp_main__" and dying:
    # The first processes have not read yet what they are to open.
    (folder / str(os.getpid())).touch()
    number = len(os.listdir(folder))
    if number <= 3:
        die(0)
    elif number <= 12:
        threading.Thread(target=die, args=(random.uniform(0, 0.3),), daemon=True).start()
elif __name__ == "__main__":
    engine = LocalEngine(workers=6 if dying else 2, attempts=13)
    # More than a pipe holds.
    engine.serve(OpenToy(folder, bytes(1_000_000 * dying)))
    tasks = [(n, "slow") for n in range(12)] if dying else [(0, "wait"), (1, "wait")]
    print([value for value, _ in engine.map(5, tasks)])
"""


def driver(repository, place, *arguments):
    (place / "driver.py").write_text(DRIVER)
    (place / "processes").mkdir()
    return subprocess.Popen(
        [sys.executable, place / "driver.py", place / "processes", *arguments],
        env=os.environ | {"PYTHONPATH": f"{repository}{os.pathsep}{repository / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_no_worker_outlives_a_driver_that_is_killed(repository, tmp_path):
    process = driver(repository, tmp_path)
    while len(found := list(tmp_path.glob("processes/waiting*"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert all(gone(int(path.name.removeprefix("waiting"))) for path in found)


def test_workers_that_die_while_they_are_started_and_opened(repository, tmp_path):
    # It would wait for ever.
    out, err = driver(repository, tmp_path, "dying").communicate(timeout=100)
    assert out == f"{[5 * n for n in range(12)]}\n", err
    assert "a worker died (exit code -9); another takes its place" in err
