"""Workers of a Ray cluster, or of Ray on this machine."""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torchtune_smt.core.accepts import accepting, check_arguments, integer
from torchtune_smt.core.errors import InputError
from torchtune_smt.parallel.engine import Engine, Tasks, Worker, error_to_send

_OPENED: dict[bytes, Worker] = {}
"""The worker of this process, by what opens it."""

_MIB: Final = 1 << 20

# Seconds in which a cluster's head has to be reached.
_REACHED: Final = 20


class RayEngine(Engine):
    """Computes tasks on a Ray cluster.

    Tasks are pure functions: where a worker or a node dies or hangs, another computes its task
    again. A process of Ray opens one worker and keeps it: the first task that it is given does that
    alone, and is given once more. The common part lies once on each node.

    address: of the cluster's head, as ``auto`` or ``HOST:6379``; by default Ray starts on this
        machine.
    workers: tasks at a time; by default one for each core of the cluster.
    object_store: MiB of shared memory for what is sent, where Ray starts here.

    Raises InputError: ray is not installed.
    Raises ValueError: a value is out of range.
    """

    # In MiB; Ray refuses less.
    accepts = accepting(object_store=integer(80))

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        deadline: float | None = None,
        attempts: int = 3,
        object_store: int = 256,
    ) -> None:
        super().__init__(workers, deadline, attempts)
        check_arguments(type(self), {"object_store": object_store})
        try:
            import ray
        except ImportError:
            raise InputError(
                "engine=ray needs the package ray, which is not installed: pip install "
                "'torchtune-smt[ray]', or take engine=local"
            ) from None
        self._ray: Any = ray
        self.address, self.object_store, self._started = address, object_store, False

    def map(self, common: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of tasks, in the order of the tasks; see `Engine.map`.

        Raises InputError: no cluster answers, or a task has lost `attempts` workers.
        """
        ray = self._ray
        self._start()
        workers = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        run = Tasks(tasks, workers, self)
        # Ray itself computes nothing again: it would do so without end where memory is short.
        compute = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_compute)
        opened = ray.put((pickle.dumps(self._open), os.getcwd(), sys.path))
        shared = ray.put(pickle.dumps(common))
        # What a task gives, with its number, and when it has begun; inf: it waits for a core.
        busy: dict[Any, tuple[int, float]] = {}

        def give() -> None:
            run.fill()
            while run.queue and len(busy) < workers:
                number = run.queue.popleft()
                busy[compute.remote(opened, shared, run.given[number])] = number, math.inf

        try:
            yield from run.served(give, lambda: self._wait(run, busy))
        finally:
            for answers in busy:
                ray.cancel(answers, force=True)

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        if self._started:
            self._ray.shutdown()
            self._started = False

    def _start(self) -> None:
        ray = self._ray
        if self._started or ray.is_initialized():
            return
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
        # Ray puts a handler of its own in its place, which ends the process at once.
        on_sigterm = signal.getsignal(signal.SIGTERM)
        if self.address is None:
            memory = self.object_store * _MIB
            options |= {"object_store_memory": memory, "num_cpus": self.workers}
        try:
            if self.address not in (None, "auto", "local"):
                # Ray itself tries for minutes, and says nothing meanwhile.
                host, _, port = self.address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), _REACHED).close()
            # Without any Ray would join a cluster that runs on this machine.
            ray.init(address=self.address or "local", logging_level="ERROR", **options)
        except (OSError, ValueError, RuntimeError) as error:
            if self.address is None:
                raise InputError(f"engine=ray: Ray does not start here ({error})") from None
            raise InputError(
                f"engine.address={self.address}: no Ray cluster answers there ({error}); start one "
                "with `ray start --head`, give its token (docs/tune.md), or leave address out"
            ) from None
        finally:
            if threading.current_thread() is threading.main_thread() and on_sigterm is not None:
                signal.signal(signal.SIGTERM, on_sigterm)
        self._started = True

    def _wait(self, run: Tasks, busy: dict[Any, tuple[int, float]]) -> None:
        ray = self._ray
        timeout = None
        first = min(begin for _, begin in busy.values())
        if self.deadline is not None and first < math.inf:
            timeout = max(0.0, first + self.deadline - time.monotonic())
        ray.wait(list(busy), timeout=timeout)
        # All that are ready: what waits here has not taken too long.
        for answers in ray.wait(list(busy), num_returns=len(busy), timeout=0)[0]:
            number, begin = busy.pop(answers)
            try:
                found = ray.get(next(answers))
            except ray.exceptions.RayError as lost:
                run.lose(number, f"was lost ({type(lost).__name__})")
                continue
            if begin == math.inf:
                busy[answers] = number, time.monotonic()
                continue
            error, answer = found
            if error is not None:
                raise error
            if answer is None:
                run.queue.appendleft(number)
            else:
                run.answer(number, answer)
        now = time.monotonic()
        for answers, (number, begin) in list(busy.items()):
            if self.deadline is not None and now - begin >= self.deadline:
                del busy[answers]
                ray.cancel(answers, force=True)
                run.lose(number)


def _compute(
    opened: tuple[bytes, str, list[str]], common: bytes, task: bytes
) -> Iterator[tuple[Exception | None, bytes | None]]:
    """Yield that a task has begun, and its error or its result; runs in a process of Ray.

    One that has to open a worker does no more, and the result is None: the time of that is not the
    task's.
    """
    yield None, None
    open_worker, folder, path = opened
    error, answer = None, None
    try:
        if open_worker in _OPENED:
            _, content = pickle.loads(task)
            answer = pickle.dumps(_OPENED[open_worker](pickle.loads(common), content))
        else:
            os.chdir(folder)
            sys.path.extend(place for place in path if place not in sys.path)
            _OPENED.clear()
            _OPENED[open_worker] = pickle.loads(open_worker)()
    except Exception as caught:
        error = error_to_send(caught)
    yield error, answer
