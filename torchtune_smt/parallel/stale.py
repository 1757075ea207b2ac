"""Asynchronous tuning by stale gradients (Green et al. 2013, Algorithm 2)."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from torchtune_smt.core.accepts import accepting, check_arguments, integer
from torchtune_smt.core.archive import DAMAGED
from torchtune_smt.core.arrays import Bool, Float64, Int64, Integers
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import numbered
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.base import lists_of
from torchtune_smt.losses import Loss
from torchtune_smt.metrics.base import with_gains
from torchtune_smt.parallel.base import Strategy, Work
from torchtune_smt.parallel.engine import Job, usable_cores, utilisation_numbers
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.gradient import Gradient, check_pairs, gradient
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.online import OnlineTuner, mean_gain


class Stale(Strategy):
    """Threads compute the gradients of mini-batches, and whatever arrives is applied.

    Weights have then been changed by others since the gradient's were read: its staleness is how
    often. Which gradient is applied when depends on time, and two runs are not the same.

    workers: mini-batches under way at a time; by default one for each core there is to use.
    max_staleness: bound of the staleness, by default none; with 0 a run is one of `Serial`.
    simulate: use no threads, and apply each gradient after so many others, in order.

    Raises ValueError: a value has no effect.
    """

    accepts = accepting(
        workers=integer(1).or_null(),
        **dict.fromkeys(("max_staleness", "simulate"), integer(0).or_null()),
    )

    def __init__(
        self,
        workers: int | None = None,
        max_staleness: int | None = None,
        simulate: int | None = None,
    ) -> None:
        given = {"workers": workers, "max_staleness": max_staleness, "simulate": simulate}
        check_arguments(type(self), given)
        if simulate is not None and (workers, max_staleness) != (None, None):
            raise ValueError(
                "simulate has no threads, and neither workers nor max_staleness; leave these out"
            )
        self.workers = workers or usable_cores()
        self.max_staleness = max_staleness
        self.simulate = simulate

    def check(self, kind: type[Tuner], loss: Loss | None) -> None:
        """Raise InputError if a tuner takes steps of its own, or more than one for a mini-batch."""
        if not issubclass(kind, OnlineTuner) or kind.step is not OnlineTuner.step:
            raise InputError(
                f"parallel=stale sends the gradients of OnlineTuner, and {kind.__name__} "
                "takes steps of its own: take tuner=online, or parallel=itermix"
            )
        if loss is not None and loss.reduction == "each":
            raise InputError(
                "parallel=stale sends one gradient for each mini-batch, and loss.reduction=each "
                "takes a step after each pair or list: set loss.reduction=sum, or take "
                "parallel=itermix"
            )

    def tuner(self, work: Work) -> StaleTuner:
        """Return the tuner whose mini-batches run side by side."""
        online = work.make(work.weights, work.sentences, work.decoder)
        self.check(type(online), getattr(online, "loss", None))
        assert isinstance(online, OnlineTuner)
        return StaleTuner(online, self)


@dataclass(frozen=True)
class Arrived:
    """The gradient of a mini-batch, by its number in the epoch, and the mean gain of its lists.

    Who computed it when is not known of one that comes from a checkpoint.
    """

    batch: int
    gradient: Gradient
    gain: float
    job: Job | None = None


class BatchWeights:
    """Weights of the features that somebody reads, as they were at the first reading.

    Reading brings these alone up to date. What the learner did not know then is 0 for good; what
    is first asked for later is as it is then.

    lock: held while weights are read.
    """

    def __init__(self, learner: Learner, lock: Any) -> None:
        self._learner, self._lock = learner, lock
        self._read_version: int | None = None
        self._known = 0
        self._ids: Int64 = np.empty(0, np.int64)
        self._values: Float64 = np.empty(0)

    @property
    def was_read(self) -> bool:
        """Whether anything was read."""
        return self._read_version is not None

    @property
    def version(self) -> int:
        """How many times the weights had been changed at the first reading."""
        found = self._read_version
        return self._learner.weights.version if found is None else found

    def read(self, features: Vocabulary | None, ids: Integers) -> Float64:
        """See `Snapshot.read`."""
        weights = self._learner.weights
        with self._lock:
            own = weights.own_ids(features, ids)
            known = len(weights.features) if self._read_version is None else self._known
        # Others may read and step meanwhile: sorting takes longer than the rest.
        distinct, place = numbered(own)
        new = distinct[(distinct >= 0) & (distinct < known) & ~self._has(distinct)]
        with self._lock:
            if self._read_version is None:
                self._read_version, self._known = weights.version, known
            values = self._learner.snapshot().read(None, new)
        if new.size:
            together = np.concatenate([self._ids, new])
            order = np.argsort(together)
            self._ids = together[order]
            self._values = np.concatenate([self._values, values])[order]
        found: Float64 = np.zeros(distinct.size)
        there = self._has(distinct)
        found[there] = self._values[np.searchsorted(self._ids, distinct[there])]
        return found[place]

    def _has(self, ids: Int64) -> Bool:
        """Return which ids were read."""
        if not self._ids.size:
            return np.zeros(ids.size, np.bool_)
        places = np.minimum(np.searchsorted(self._ids, ids), self._ids.size - 1)
        there: Bool = self._ids[places] == ids
        return there


class StaleTuner(Tuner):
    """An `OnlineTuner` whose mini-batches run side by side.

    online: its learner owns the weights.
    """

    unit = OnlineTuner.unit
    advice = OnlineTuner.advice
    results = OnlineTuner.results

    def __init__(self, online: OnlineTuner, strategy: Stale) -> None:
        self.online, self.strategy, self.weights = online, strategy, online.weights
        self._decoders = [online.decoder]
        if strategy.simulate is None:
            self._decoders = [online.decoder.sibling() for _ in range(strategy.workers)]
        # Those that are evaluated with read weights, too.
        self.weights.readers = len(self._decoders) + 2
        # Of the epoch under way: mini-batches that are done; with `simulate`, those that wait.
        self._done: list[int] = []
        self._waiting: deque[Arrived] = deque()
        self._staleness: Counter[int] = Counter()
        # The gradient that was applied last.
        self._last: dict[str, Any] | None = None
        # What threads did in this epoch, as far as it was not stopped.
        self._jobs: list[Job] = []

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Go once through the sentences, yielding after each step."""
        online = self.online
        if not done:
            self._staleness.clear()
            online.found = 0
        batches = online.batches(number)
        known = {*self._done, *(arrived.batch for arrived in self._waiting)}
        left = [b for b in range(len(batches)) if b not in known]
        arrivals = self._threads if self.strategy.simulate is None else self._simulated
        self._jobs.clear()
        begin = time.perf_counter()
        for arrived in arrivals(left, number, batches):
            grad, size = arrived.gradient, int(batches[arrived.batch].size)
            staleness = self._apply(arrived)
            now = time.perf_counter()
            numbers = {
                **online.numbers(grad.loss, arrived.gain, grad.count),
                "train/staleness": staleness,
                "speed/sentences_per_second": size / (now - begin),
            }
            if arrived.job is not None:
                self._jobs.append(arrived.job)
                numbers |= arrived.job.numbers()
            begin = now
            yield Report("step", numbers, f"gain {arrived.gain:.4f}", size)
        if number == 1:
            check_pairs(online.found)
        self._done = []
        online.optimizer.flush()
        online.optimizer.end_epoch()

    def _apply(self, arrived: Arrived) -> int:
        """Take the step of a gradient; return how stale that was."""
        staleness = self.weights.version - arrived.gradient.version
        self.online.learner.apply(arrived.gradient, max_age=self.strategy.max_staleness)
        self._done.append(arrived.batch)
        self.online.found += arrived.gradient.count
        self._staleness[staleness] += 1
        self._last = _saved(arrived, staleness)
        return staleness

    def summary(self, kept: bool) -> Report:
        """Return how many features have a weight, and how stale gradients have been."""
        counts = sorted(self._staleness.items())
        text = ", ".join(f"{age}: {count:,}" for age, count in counts)
        numbers = {f"staleness/{age}": float(count) for age, count in counts}
        numbers |= utilisation_numbers(self._jobs)
        said = self.online.summary(kept).text
        return Report("round", numbers, f"{said}, steps by staleness {text or 'none'}")

    def averaged(self) -> torch.Tensor | None:
        """Return the optimizer's own average of the weights, if it is to be taken."""
        return self.online.averaged()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's, which mini-batches are done, and gradients that wait."""
        now = self.weights.version
        return {
            "online": self.online.state_dict(),
            "done": list(self._done),
            "waiting": [_saved(one, now - one.gradient.version) for one in self._waiting],
            "staleness": dict(self._staleness),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._waiting = deque(self._arrived(saved) for saved in state_dict["waiting"])
        self.online.load_state_dict(state_dict["online"])
        self._done, self._staleness = list(state_dict["done"]), Counter(state_dict["staleness"])

    def step_dict(self) -> dict[str, Any] | None:
        """Return the gradient that was applied last."""
        # None where a run that goes on is one that was not stopped, to the last bit: what reading
        # has brought up to date, and with `simulate` gradients that wait, are part of that.
        exact = self.strategy.simulate is not None or self.strategy.max_staleness == 0
        return None if exact else self._last

    def redo(self, step_dict: dict[str, Any]) -> None:
        """Apply a gradient again."""
        if not self._done:
            self._staleness.clear()
            self.online.found = 0
        self._apply(self._arrived(step_dict))

    def _arrived(self, saved: dict[str, Any]) -> Arrived:
        """Return a gradient that `_saved` has given."""
        feature, value = saved["feature"].numpy(), saved["value"].numpy()
        known = (feature >= 0) & (feature < len(self.weights.features))
        if feature.shape != value.shape or not known.all():
            raise ValueError(DAMAGED)
        version = self.weights.version - saved["age"]
        found = Gradient(feature, value, None, version, saved["loss"], saved["count"])
        return Arrived(saved["batch"], found, saved["gain"])

    def _compute(
        self, b: int, worker: int, weights: BatchWeights, lock: Any, chosen: Int64, epoch: int
    ) -> Arrived:
        """Return the gradient of a mini-batch."""
        online = self.online
        begin, start = time.time(), time.perf_counter()
        lists = lists_of(self._decoders[worker], online.sources(chosen), weights)
        decoded = time.perf_counter()
        lists = with_gains(online.metric, lists)
        with lock:
            lists = online.learner.take(lists)
        found = gradient(lists, weights, online.loss, online.sampler, (online.seed, epoch))
        end = time.perf_counter()
        job = Job(worker + 1, begin, end - start, end - decoded)
        return Arrived(b, found, mean_gain(lists), job)

    def _simulated(
        self, left: Sequence[int], epoch: int, batches: Sequence[Int64]
    ) -> Iterator[Arrived]:
        """Yield gradients, each so many steps after its weights were read."""
        lock = threading.RLock()
        assert self.strategy.simulate is not None
        for b in left:
            weights = BatchWeights(self.online.learner, lock)
            self._waiting.append(self._compute(b, 0, weights, lock, batches[b], epoch))
            if len(self._waiting) > self.strategy.simulate:
                yield self._waiting.popleft()
        while self._waiting:
            yield self._waiting.popleft()

    def _threads(
        self, left: Sequence[int], epoch: int, batches: Sequence[Int64]
    ) -> Iterator[Arrived]:
        """Yield gradients as they arrive, as far as the bound of staleness lets them.

        Whoever iterates may read and change weights, but while he waits for the next one: the lock
        is his until then.
        """
        bound = self.strategy.max_staleness
        # One more for each thread, that it need not wait for its next.
        most = 2 * len(self._decoders) if bound is None else bound + 1
        threads = min(len(self._decoders), most)
        lock, free = threading.RLock(), SimpleQueue[int]()
        for worker in range(threads):
            free.put(worker)
        queue, reading, arrived = deque(left), dict[int, BatchWeights](), list[Arrived]()
        running = set[Future[Arrived]]()

        def job(b: int) -> Arrived:
            worker = free.get()
            try:
                return self._compute(b, worker, reading[b], lock, batches[b], epoch)
            finally:
                free.put(worker)

        pool = ThreadPoolExecutor(threads)
        lock.acquire()
        try:
            while queue or reading:
                while queue and len(reading) < most:
                    b = queue.popleft()
                    reading[b] = BatchWeights(self.online.learner, lock)
                    running.add(pool.submit(job, b))
                lock.release()
                try:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                finally:
                    lock.acquire()
                arrived += [future.result() for future in done]
                for one in sorted(arrived, key=lambda one: (one.gradient.version, one.batch)):
                    if bound is None or self._may_step(one, reading, bound):
                        arrived.remove(one)
                        del reading[one.batch]
                        yield one
        finally:
            # Ctrl-C may have come while it was to be had again.
            with suppress(RuntimeError):
                lock.release()
            pool.shutdown(cancel_futures=True)

    def _may_step(self, one: Arrived, reading: dict[int, BatchWeights], bound: int) -> bool:
        # Of those that were read, the k-th oldest has to have k steps left before its own.
        now = self.weights.version + 1
        older = sorted(
            weights.version
            for b, weights in reading.items()
            if b != one.batch and weights.was_read and weights.version < one.gradient.version
        )
        return all(version + bound >= now + k for k, version in enumerate(older))


def _saved(arrived: Arrived, age: int) -> dict[str, Any]:
    """Return a gradient in numbers and tensors; `StaleTuner._arrived` takes it."""
    grad = arrived.gradient
    return {
        "batch": arrived.batch,
        "feature": torch.from_numpy(grad.feature),
        "value": torch.from_numpy(grad.value),
        # A run that goes on counts anew.
        "age": age,
        "loss": grad.loss,
        "count": grad.count,
        "gain": arrived.gain,
    }
