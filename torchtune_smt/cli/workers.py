"""Workers of an engine: they open what the configuration names once more."""

from __future__ import annotations

import contextlib
import io
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.task import Task, model_digests, open_decoder, open_task, reads_text
from torchtune_smt.cli.tuning import Tuning
from torchtune_smt.core.archive import FileIdentity, accepted_files, trusting
from torchtune_smt.parallel.decode import DecodeTask, DecodeWorker
from torchtune_smt.parallel.engine import Engine, Worker
from torchtune_smt.parallel.shard_worker import ShardTask, ShardWorker, active
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.grouping.steps import one_step

# Sentences that a worker is tried on.
_TRIED: Final = 5


def serve_workers(cfg: DictConfig, tuning: Tuning, task: Task) -> Callback:
    """Tell the engine how workers are opened; return who ends them when the run is over."""
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
        if cfg.tuner.get("learning") == "mix":
            decode(None, one_step())
    tuning.engine.serve(OpenWorker.of(cfg, task, dimension))
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

    Attributes
    ----------
    cfg : DictConfig
        The configuration of the run.
    hydra : DictConfig, optional
        What Hydra knows of it.
    words : list of str
        `Task.words`: they have the same ids in all processes.
    model : list of str
        `model_digests` of the run's model.
    accepted : frozenset of FileIdentity
        Files that this process has verified. On the same machine they are not read once more, and a
        worker has in memory what it uses of them.
    """

    cfg: DictConfig
    hydra: Any
    words: list[str]
    model: list[str]
    accepted: frozenset[FileIdentity]

    @classmethod
    def of(cls, cfg: DictConfig, task: Task, dimension: int | None) -> OpenWorker:
        """Return what opens workers of a run; OSCAR's d, if there is one, is known already."""
        cfg = deepcopy(cfg)
        OmegaConf.set_struct(cfg, False)
        # Processes share the cores.
        cfg.threads = cfg.threads or 1
        if dimension is not None:
            cfg.regularizer.dimension = dimension
        hydra = HydraConfig.instance().cfg
        return cls(cfg, hydra, task.words, model_digests(task.model), accepted_files())

    def __call__(self) -> Worker:
        """Return a worker."""
        HydraConfig.instance().cfg = self.hydra
        torch.set_num_threads(1)
        # The driver has said it.
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            trusting(self.accepted),
        ):
            parts = Parts(self.cfg)
            tuning = Tuning(self.cfg, parts)
            if reads_text(parts):
                return tuning.worker(open_task(self.cfg, parts, may_write_model=False).decoder)
            return tuning.worker(open_decoder(self.cfg, parts, self.words, self.model))
