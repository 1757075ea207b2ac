"""Workers of an engine: they open what a run is made of once more."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from torchtune_smt.core.archive import FileIdentity, accepted_files, trusting
from torchtune_smt.parallel.decode import DecodeTask, DecodeWorker
from torchtune_smt.parallel.engine import Engine, Worker
from torchtune_smt.parallel.shard_worker import ShardTask, ShardWorker, active
from torchtune_smt.runs.parts import Parts
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.runs.task import Task, model_digests, open_decoder, open_task, reads_text
from torchtune_smt.runs.tuning import Tuning
from torchtune_smt.tuners.grouping.steps import one_step

# Sentences that a worker is tried on.
_TRIED: Final = 5


def serve_workers(tuning: Tuning, task: Task, make_parts: Callable[[], Parts]) -> Callback:
    """Tell the engine how workers are opened; return who ends them when the run is over.

    make_parts: makes the parts of the run once more, in another process; it can be pickled.
    """
    # Kernels that nobody has compiled yet are compiled here, once, and not in each worker.
    dimension = None
    if tuning.strategy.shards_data:
        tried = task.tuning.part(range(min(_TRIED, len(task.tuning))))
        worker = ShardWorker(tuning.make_tuner, task.decoder.fork())
        worker(active(task.weights), ShardTask(1, tried))
        dimension = tuning.shard_dimension
    else:
        some = task.tuning.sources[:_TRIED]
        decode = DecodeWorker(task.decoder.fork())
        decode(active(task.weights), DecodeTask(some, None))
        if tuning.mixes_groups:
            decode(None, one_step())
    tuning.engine.serve(OpenWorker.of(task, make_parts, dimension))
    return _EndOfWorkers(tuning.engine)


class _EndOfWorkers(Callback):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def on_end(self, run: Rounds) -> None:
        """End them."""
        self._engine.close()


@dataclass(frozen=True)
class OpenWorker:
    """Opens a worker, in any process. Its sentences come with its tasks.

    dimension: OSCAR's d, which is known already.
    words: `Task.words`: they have the same ids in all processes.
    model: `model_digests` of the run's model.
    accepted: files that this process has verified. On the same machine they are not read once more,
        and a worker has in memory what it uses of them.
    """

    make_parts: Callable[[], Parts]
    dimension: int | None
    words: list[str]
    model: list[str]
    accepted: frozenset[FileIdentity]

    @classmethod
    def of(cls, task: Task, make_parts: Callable[[], Parts], dimension: int | None) -> OpenWorker:
        """Return what opens workers of a run."""
        return cls(make_parts, dimension, task.words, model_digests(task.model), accepted_files())

    def __call__(self) -> Worker:
        """Return a worker."""
        torch.set_num_threads(1)
        # The driver has said it.
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            trusting(self.accepted),
        ):
            parts = self.make_parts()
            # Processes share the cores.
            parts.threads = parts.threads or 1
            parts.dimension = self.dimension or parts.dimension
            tuning = Tuning(parts)
            if reads_text(parts):
                return tuning.worker(open_task(parts, may_write_model=False).decoder)
            return tuning.worker(open_decoder(parts, self.words, self.model))
