"""Processes on this machine as workers."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Final

from torchtune_smt.parallel.engine import Engine, Tasks, error_to_send, usable_cores

# In the place of a task's number: the common part, and that a worker is ready; that a process has
# started, and asks what it is to open.
_COMMON: Final = -1
_STARTED: Final = -2

# Seconds after which it is looked whether a worker lives that says nothing. Its pipe tells of its
# end, but not while a process that it has forked holds the other end.
_LOOK: Final = 1.0


class LocalEngine(Engine):
    """Computes tasks in processes of their own.

    One that dies, or hangs, is replaced, and its task given to another. All of them end with this
    process, even if it is killed. The deadline is one of the start of a process, too.
    """

    def __init__(
        self, workers: int | None = None, deadline: float | None = None, attempts: int = 3
    ) -> None:
        super().__init__(workers, deadline, attempts)
        self._workers = workers or usable_cores()
        self._processes: list[_Process] = []
        self._common = b""

    def map(self, common: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of tasks, in the order of the tasks; see `Engine.map`.

        Raises InputError: a task, or the opening of a worker, has lost `attempts` workers.
        """
        run = Tasks(tasks, self._workers, self)
        self._common = pickle.dumps((_COMMON, common))
        try:
            yield from run.served(lambda: self._give(run), lambda: self._wait(run))
        finally:
            # What others compute now, nobody asks for.
            for process in [p for p in self._processes if p.task is not None]:
                self._remove(process)

    def close(self) -> None:
        """End all workers."""
        for process in list(self._processes):
            self._remove(process)

    def _give(self, run: Tasks) -> None:
        """Give tasks to those who have none, and open workers as long as there are too few."""
        run.fill()
        for process in [p for p in self._processes if p.ready and p.task is None]:
            if run.queue:
                # Who had a task of this number before knows the grammar of its sentences, say.
                task = next((task for task in run.queue if task in process.known), run.queue[0])
                run.queue.remove(task)
                process.give(task, run, self._common)
        opening = sum(not p.ready for p in self._processes)
        for _ in range(min(self._workers - len(self._processes), len(run.queue) - opening)):
            self._processes.append(_Process(self.deadline))

    def _wait(self, run: Tasks) -> None:
        """Wait until a worker has something to say, or has died, or for too long."""
        active = [p for p in self._processes if p.task is not None or not p.ready]
        timeout = _LOOK
        if self.deadline is not None:
            left = min(p.begin for p in active) + self.deadline - time.monotonic()
            timeout = min(max(0.0, left), _LOOK)
        ready = connection.wait([p.pipe for p in active], timeout)
        for process in active:
            if process.pipe in ready:
                try:
                    number, error, answer = pickle.loads(process.receive())
                except (EOFError, OSError):
                    self._replace(process, run, process.late)
                    continue
                if error is not None:
                    raise error
                if number == _STARTED:
                    process.begin = time.monotonic()
                    process.send(pickle.dumps(self._open))
                elif number == _COMMON:
                    process.ready, run.lost = True, 0
                else:
                    run.answer(number, answer)
                    process.task = None
            elif not process.process.is_alive():
                self._replace(process, run)
            elif self.deadline is not None and time.monotonic() - process.begin >= self.deadline:
                self._replace(process, run, late=True)

    def _replace(self, process: _Process, run: Tasks, late: bool = False) -> None:
        """Remove a worker, and have its task given to another; `_give` opens one."""
        if not late:
            # It closes its pipe before it ends: killed now, it would have the exit code of that.
            process.process.join(_LOOK)
        self._remove(process)
        run.lose(process.task, "" if late else f"died (exit code {process.process.exitcode})")

    def _remove(self, process: _Process) -> None:
        self._processes.remove(process)
        process.end()


class _Process:
    """A worker, as the driver sees it.

    A message to it, or from it, may be under way for `deadline` seconds.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self._deadline = deadline
        # Whether it was killed since it took, or gave, a message too slowly.
        self.late = False
        context = get_context("spawn")
        self.pipe, there = context.Pipe()
        # What it opens is sent when it asks: arguments, where they are long, are waited for until
        # it has read them, and for ever if it dies before.
        self.process = context.Process(target=_serve, args=(there,), daemon=True)
        # Ctrl-C goes to all processes of a terminal, and it is the driver that ends its workers.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        # When its task, its start or its opening has begun.
        self.begin = time.monotonic()
        self.ready = False
        self.task: int | None = None
        # The tasks that it has been given, in all calls of `Engine.map`.
        self.known: set[int] = set()
        self._run: Tasks | None = None

    def give(self, task: int, run: Tasks, common: bytes) -> None:
        """Have a task computed."""
        self.task, self.begin = task, time.monotonic()
        self.known.add(task)
        if self._run is not run:
            self.send(common)
        self.send(run.given[task])
        self._run = run

    def send(self, message: bytes) -> None:
        """Send it something."""
        # Where it is dead, waiting for its answer shows it.
        with contextlib.suppress(OSError), self._watched():
            self.pipe.send_bytes(message)

    def receive(self) -> bytes:
        """Return what it has to say; raise EOFError or OSError if it is dead."""
        with self._watched():
            return self.pipe.recv_bytes()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Kill it where a message, of which a pipe holds little, takes longer than the deadline.

        To write to a process that hangs, or to read the rest of its answer, would wait for ever.
        """
        if self._deadline is None:
            yield
            return

        def kill() -> None:
            self.late = True
            self.process.kill()

        timer = threading.Timer(self._deadline, kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    """Be a worker, as long as the driver lives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Of the pipe, whose other end is gone; what a task raises is sent.
    with contextlib.suppress(EOFError, ConnectionError):
        for answer in _answers(pipe):
            pipe.send_bytes(pickle.dumps(answer))


def _answers(pipe: Connection) -> Iterator[tuple[int, Exception | None, bytes]]:
    """Yield what the driver is told: the number of a task, an error, and a result."""
    yield _STARTED, None, b""
    message = pipe.recv_bytes()
    number, common = _COMMON, None
    try:
        worker = pickle.loads(message)()
    except Exception as error:
        yield number, error_to_send(error), b""
        return
    yield number, None, b""
    while True:
        message, answer = pipe.recv_bytes(), b""
        try:
            number, content = pickle.loads(message)
            if number == _COMMON:
                common = content
            else:
                answer = pickle.dumps(worker(common, content))
        except Exception as error:
            yield number, error_to_send(error), b""
            return
        if number != _COMMON:
            yield number, None, answer


def _end_with_parent() -> None:
    """End this process when its parent has ended, in whatever way."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
