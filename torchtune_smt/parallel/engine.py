"""Where tasks are computed; strategies know no more of it than this. And who computed what when."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from torchtune_smt.core.accepts import Checked, above, accepting, check_arguments, integer
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import DivergenceError, InputError

Worker = Callable[[Any, Any], Any]
"""``worker(common, task)`` returns a result that depends on these two alone."""


# Results that may wait for an earlier one, for each worker.
_AHEAD: Final = 2


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Engine(Checked, ABC):
    """Workers that compute tasks. All that is sent and returned can be pickled.

    workers: how many; by default one for each core there is to use.
    deadline: seconds after which a task counts as hung, and so does the opening of a worker; never
        by default.
    attempts: a task that has lost so many workers is an error.
    """

    accepts = accepting(
        workers=integer(1).or_null(),
        deadline=above(0, infinite=True).or_null(),
        attempts=integer(1),
    )

    def __init__(
        self, workers: int | None = None, deadline: float | None = None, attempts: int = 3
    ) -> None:
        self.workers, self.deadline, self.attempts = workers, deadline, attempts
        check_arguments(type(self), vars(self))
        self._open: Callable[[], Worker] | None = None

    def serve(self, open_worker: Callable[[], Worker]) -> None:
        """Say how a worker is opened, which is done once in each process, and not before `map`."""
        self._open = open_worker

    @abstractmethod
    def map(self, common: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of tasks, in the order of the tasks.

        A task may be computed more than once, and its result counts once. Tasks are taken from the
        iterable when there is soon a worker for them. Whoever stops to iterate ends what is under
        way.

        common: what all of these tasks get; it is sent once to each worker.
        """

    def close(self) -> None:
        """End all workers; `map` opens new ones."""
        return None


class InProcess(Engine):
    """Computes all tasks here, one after the other."""

    _worker: Worker | None = None

    def map(self, common: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of tasks; see `Engine.map`."""
        if self._worker is None:
            assert self._open is not None
            self._worker = self._open()
        for task in tasks:
            yield self._worker(common, task)


class Tasks:
    """The tasks of a call of `Engine.map`, for engines that may lose some workers.

    A task that has lost `attempts` of them is an error.
    """

    def __init__(self, tasks: Iterable[Any], workers: int, engine: Engine) -> None:
        # The task whose result comes next, messages of those that have no result yet, which of
        # these nobody computes, and results that wait for an earlier one.
        self.next = 0
        self.given: dict[int, bytes] = {}
        self.queue: deque[int] = deque()
        self.results: dict[int, bytes] = {}
        # Workers that were lost one after the other before they were open.
        self.lost = 0
        self._tasks = enumerate(tasks)
        self._ahead = _AHEAD * workers
        self._attempts, self._deadline = engine.attempts, engine.deadline
        self._taken = 0
        self._losses: Counter[int] = Counter()

    def fill(self) -> None:
        """Take tasks, as long as not too many results could come to wait."""
        for number, task in islice(self._tasks, max(0, self.next + self._ahead - self._taken)):
            self.given[number] = pickle.dumps((number, task))
            self.queue.append(number)
            self._taken += 1

    def answer(self, number: int, result: bytes) -> None:
        """Take the result of a task; one that was computed twice has it already."""
        if self.given.pop(number, None) is not None:
            self.results[number] = result

    def served(self, give: Callable[[], None], wait: Callable[[], None]) -> Iterator[Any]:
        """Yield the results of tasks, in their order.

        give: fills, and gives tasks to workers that have none.
        wait: waits until there is an answer, or a worker is lost.
        """
        while True:
            give()
            while self.next in self.results:
                result = pickle.loads(self.results.pop(self.next))
                self.next += 1
                # Nobody waits while the caller works.
                give()
                yield result
            if not self.given:
                return
            wait()

    def lose(self, task: int | None, what: str = "") -> None:
        """Have a task given again that has lost its worker (None: while it was opened).

        what: has become of the worker; by default it took longer than the deadline.

        Raises InputError: so many workers were lost over it that no other is tried.
        """
        cure = "Exit code -9 often means that there is too little memory: give fewer"
        if not what:
            what = f"took more than {self._deadline:g} s (engine.deadline)"
            cure = "Where it does not hang, give a longer engine.deadline, or fewer"
        print(f"a worker {what}; another takes its place", file=sys.stderr, flush=True)
        if task is None:
            self.lost = losses = self.lost + 1
        else:
            self.queue.appendleft(task)
            self._losses[task] = losses = self._losses[task] + 1
        if losses >= self._attempts:
            raise InputError(
                f"{losses} workers were lost over one task; the last one {what}. {cure} "
                "engine.workers"
            )


def error_to_send(error: Exception) -> Exception:
    """Return an error as the driver is to raise it: a bug with the trace of its worker.

    So is what cannot be sent, as an error of a user's own class with arguments of its own.
    """
    if isinstance(error, InputError | DivergenceError | MemoryError | BrokenPipeError):
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return error
    return RuntimeError(traceback.format_exc())


@dataclass(frozen=True)
class Job:
    """An epoch on a shard, or the gradient of a mini-batch: who (from 1) computed it when.

    `begin` is in seconds since 1970; of the `seconds` that it took, `learning` were not decoding.
    """

    worker: int
    begin: float
    seconds: float
    learning: float

    def numbers(self) -> dict[str, float]:
        """Return what the log is to have of it."""
        return {
            "parallel/worker": self.worker,
            "parallel/begin": self.begin,
            "parallel/seconds": self.seconds,
            "parallel/seconds_learning": self.learning,
        }


def utilisation_numbers(jobs: Sequence[Job]) -> dict[str, float]:
    """Return what the log is to have of an epoch: the utilisation, if there were jobs."""
    columns = np.array([(job.worker, job.begin, job.seconds) for job in jobs]).T
    return {"parallel/utilisation": utilisation(*columns)} if jobs else {}


def utilisation(worker: Float64, begin: Float64, seconds: Float64) -> float:
    """Return the share of the workers' time, from first begin to last end, with a job."""
    span = (begin + seconds).max() - begin.min()
    return float(seconds.sum() / (np.unique(worker).size * span)) if span > 0 else 1.0
