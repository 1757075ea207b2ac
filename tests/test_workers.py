"""What a worker opens: the model of the run, as far as it needs it, and no text."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from commands import MODEL, SMALL
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from torchtune_smt.cli.parts import make_parts, parts_elsewhere
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.parallel.shard_worker import ShardTask, ShardWorker, active
from torchtune_smt.runs.task import open_task
from torchtune_smt.runs.tuning import OpenWorker, Tuning


@pytest.fixture
def opened(run, monkeypatch):
    """A run on the bitext, as its first process opens it."""
    model = f"model.folder={run.place / 'outputs' / 'models' / 'example'}"
    options = [*MODEL, *SMALL, model, "tuner.tune_on=train", "model.folds=3", "parallel=itermix"]
    with initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
        cfg = compose("train", overrides=options, return_hydra_config=True)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    cfg = cfg.copy()
    with open_dict(cfg):
        del cfg["hydra"]
    parts = make_parts(cfg)
    tuning = Tuning(parts)
    task = open_task(parts)
    tuning.open(task, Path(), resumed=False)
    return cfg, tuning, task


def test_a_worker_reads_no_text(opened, monkeypatch):
    """And computes what one does that has read it all."""
    cfg, tuning, task = opened
    shard = ShardTask(1, task.tuning.part([1, 4, 5, 17, 29]))
    expected = ShardWorker(tuning.make_tuner, task.decoder.fork())(active(task.weights), shard)

    def read(*arguments, **options):
        raise AssertionError("a text was read")

    monkeypatch.setattr(Dataset, "read", read)
    open_worker = pickle.loads(pickle.dumps(OpenWorker.of(task, parts_elsewhere(cfg), None)))
    found = open_worker()(active(task.weights), pickle.loads(pickle.dumps(shard)))
    assert found.weights.features.to_arrays()["letters"].tobytes() == (
        expected.weights.features.to_arrays()["letters"].tobytes()
    )
    assert found.weights.values.tolist() == expected.weights.values.tolist()
    assert (found.loss, found.gain, found.pairs) == (expected.loss, expected.gain, expected.pairs)
    assert len(found.weights) > 30


def test_another_model_is_refused(opened):
    cfg, _, task = opened
    open_worker = OpenWorker.of(task, parts_elsewhere(cfg), None)
    with pytest.raises(InputError, match="the model that is found by a worker is not that of the"):
        replace(open_worker, model=["0" * 16, open_worker.model[1]])()
