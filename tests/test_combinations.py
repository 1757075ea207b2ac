"""Losses, regularizers, optimizers and parallel strategies of conf/ together: all tune, or refuse.

Objects are made as ``train`` makes them; what is decoded are a few short lists, in this process.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from test_online import DENSE, Hypothesis, ListDecoder, sentences_of, values_of

from torchtune_smt.cli.parts import make_parts
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import Source
from torchtune_smt.parallel.engine import InProcess
from torchtune_smt.parallel.shard_worker import ShardWorker
from torchtune_smt.runs.task import Task
from torchtune_smt.runs.tuning import Tuning

# The regularizers that an optimizer takes.
TAKEN = {
    "adagrad": ["elastic_net", "l1", "l2", "none"],
    "arow": ["elastic_net", "l1", "l2", "none"],
    "cumulative_l1": ["l1"],
    "fobos": ["elastic_net", "l1", "l2", "none", "oscar"],
    "fobos_oscar": ["oscar"],
    "ftrl": ["elastic_net", "l1", "l2", "none"],
    "rda": ["elastic_net", "l1", "l2", "none", "oscar"],
    "sgd": ["none"],
}
REGULARIZERS = sorted({regularizer for taken in TAKEN.values() for regularizer in taken})
# Losses, and whether each has a step after each pair or list, unless one says otherwise.
LOSSES = {
    "expected_gain": False,
    "hinge": True,
    "hope_fear": True,
    "logistic": False,
    "perceptron": True,
    "ramp": False,
    "softmax": False,
}
# Strategies, with options under which the first epochs, so many, are those of parallel=serial.
ALONE: dict[str, tuple[dict[str, int], int]] = {
    "serial": ({}, 2),
    "mix": ({"shards": 1}, 2),
    "itermix": ({"shards": 1}, 1),
    "itersel": ({"shards": 1}, 1),
    "stale": ({"workers": 2, "max_staleness": 0}, 1),
}
# And with which they are not.
APART = {"mix": {"shards": 2}, "itermix": {"shards": 2}, "itersel": {"shards": 2}}
APART["stale"] = {"simulate": 1}


# How combinations are refused: options are named, and the cure.
REFUSED_REGULARIZER = r"^optimizer: .*\(optimizer=fobos\b"
REFUSED_EACH = "^parallel=stale .* loss.reduction=each .*: set loss.reduction=sum, or take parallel"
REFUSED_RDA = "^RDA forgets .* under parallel={} .*: take parallel=mix, .*, or another optimizer"


def refusal(optimizer: str, loss: str, parallel: str) -> str | None:
    """How a combination is refused that has a regularizer for the optimizer; None: it is not."""
    if optimizer == "rda" and parallel in ("itermix", "itersel"):
        return REFUSED_RDA.format(parallel)
    return REFUSED_EACH if parallel == "stale" and LOSSES[loss] else None


def lists() -> list[list[Hypothesis]]:
    """The n-th hypothesis of a sentence has n words of its reference, and comes behind worse."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(4):
        some = []
        for right in range(6):
            words = [f"w{i}_{j}" for j in range(right)] + ["x"] * (5 - right)
            values = {"model": 0.2 * (5 - right), "length": float(rng.normal())}
            values |= {"right": float(right), f"s:{rng.integers(4)}": 1.0}
            some.append((" ".join(words), values, right / 5))
        found.append(some)
    return found


class Charts(ListDecoder):
    """Knows beforehand which features there are."""

    def feature_ids(self, sources: Sequence[Source]) -> Int64:
        names = sorted({n for s in sources for _, row, _ in self.lists[s.index] for n in row})
        ids = self.features.intern(names).astype(np.int64)
        return np.sort(ids[ids >= len(DENSE)])


class Toy:
    """A run of a configuration on the lists, with their words as references and hypotheses."""

    def __init__(self, cfg: DictConfig, folder: Path) -> None:
        tuning = Tuning(make_parts(cfg))
        self.decoder = Charts(lists())
        self.weights = Weights(DENSE)
        self.weights.set(["model"], [0.001])
        sentences = sentences_of(self.decoder.lists)
        if tuning.uses_engine:
            tuning.engine = InProcess()
            tuning.engine.serve(lambda: ShardWorker(tuning.make_tuner, self.decoder.fork()))
        lines = list(range(1, len(sentences) + 1))
        task = Task(
            self.decoder,
            self.weights,
            {"dev": sentences},
            sentences,
            None,
            lines,
            len(lines),
            [],
            None,
        )
        self.sentences = sentences
        self.tuner = tuning.open(task, folder, resumed=False).tuner
        self.before = self.quality()

    def quality(self) -> float:
        """How many of the words are right in what the weights think best, of 1."""
        best = self.decoder.decode(self.sentences.sources, self.weights.frozen(), k=1)
        gain = {words: gain for some in self.decoder.lists for words, _, gain in some}
        names = self.decoder.words.names
        return sum(gain[" ".join(names(one.hypothesis(0)))] for one in best) / len(best)

    def epoch(self, number: int) -> dict[str, float]:
        """Tune; return the weights."""
        for _ in self.tuner.round(number):
            pass
        return values_of(self.weights)


@pytest.fixture(scope="module")
def cfg(repository):
    """The configuration of ``train``, with the cost of a toy; groups of it are replaced."""
    with initialize_config_dir(str(repository / "conf"), version_base="1.3"):
        found = compose("train", ["tuner.batch_size=2", "sampler.candidates=20", "sampler.pairs=5"])
    # As in a command: the tensors are small.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield found
    torch.set_num_threads(threads)


@pytest.fixture
def choose(cfg):
    """Put a choice of a group, with options, into the configuration."""

    def chosen(group, name, **options):
        cfg[group] = OmegaConf.load(config_folder() / group / f"{name}.yaml")
        cfg[group].update(options)

    return chosen


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("optimizer", TAKEN)
def test_together(optimizer, regularizer, cfg, choose, tmp_path):
    choose("optimizer", optimizer)
    choose("regularizer", regularizer)
    if regularizer not in TAKEN[optimizer]:
        with pytest.raises(InputError, match=REFUSED_REGULARIZER):
            make_parts(cfg)
        return
    first = [*TAKEN].index(optimizer) + REGULARIZERS.index(regularizer)
    for number, loss in enumerate(LOSSES, start=first):
        choose("loss", loss)
        serial: list[dict[str, float]] = []
        # Each strategy meets each optimizer and regularizer with a loss, in turn.
        for parallel, (options, epochs) in ALONE.items():
            case = f"{optimizer} {regularizer} {loss} {parallel}"
            if parallel != "serial" and number % len(LOSSES):
                continue
            choose("parallel", parallel, **options)
            expected = refusal(optimizer, loss, parallel)
            try:
                toy = Toy(cfg, tmp_path)
            except InputError as error:
                assert expected is not None and re.search(expected, str(error)), f"{case}: {error}"
                continue
            assert expected is None, f"{case} is not refused"
            found = [toy.epoch(epoch) for epoch in range(1, epochs + 1)]
            if parallel == "serial":
                serial = found
                assert all(map(math.isfinite, found[-1].values())), case
                assert toy.quality() > toy.before + 0.1, case
            for one, other in zip(found, serial, strict=False):
                assert one == pytest.approx(other, rel=1e-9, abs=1e-12), case


@pytest.mark.parametrize("optimizer", TAKEN)
def test_apart(optimizer, cfg, choose, tmp_path):
    """Two shards, and stale gradients: they learn, and not what one after the other does."""
    choose("optimizer", optimizer)
    choose("loss", "logistic")
    for regularizer in TAKEN[optimizer][-2:]:
        choose("regularizer", regularizer)
        choose("parallel", "serial")
        serial = Toy(cfg, tmp_path).epoch(1)
        for parallel, options in APART.items():
            if refusal(optimizer, "logistic", parallel) is not None:
                continue
            case = f"{optimizer} {regularizer} {parallel}"
            choose("parallel", parallel, **options)
            toy = Toy(cfg, tmp_path)
            assert toy.epoch(1) != serial, case
            assert all(map(math.isfinite, toy.epoch(2).values())), case
            assert toy.quality() > toy.before + 0.1, case


def test_all_choices_are_here(repository):
    tables = {
        "optimizer": TAKEN,
        "regularizer": REGULARIZERS,
        "loss": LOSSES,
        # The last one is for batch tuners (see tests/test_parallel_cli.py).
        "parallel": [*ALONE, "decode"],
    }
    for group, table in tables.items():
        found = sorted(path.stem for path in (repository / "conf" / group).glob("*.yaml"))
        assert found == sorted(table), group
