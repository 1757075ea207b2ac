"""A run from Python: the object that the command uses, without Hydra."""

from dataclasses import replace

import pytest
import torch
from test_rounds import Dies

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe
from torchtune_smt.core.resources import EXAMPLE
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features import RuleShape
from torchtune_smt.models import BitextModel
from torchtune_smt.optim import FOBOS
from torchtune_smt.regularizers import L1
from torchtune_smt.runs.parts import Parts
from torchtune_smt.runs.run import Run
from torchtune_smt.tuners.batch import BatchTuner
from torchtune_smt.tuners.mira import KBestMira

FILES = ("weights.txt.gz", "dev.translations.txt", "test.translations.txt")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    return Parts(
        dataset=Dataset("example", "de", "en", folders=EXAMPLE, tokenize=True, lowercase=True),
        decoding=Recipe.of(HieroDecoder, k=20, pop_limit=10),
        model=BitextModel(str(folder), iterations=1, order=2, folds=0),
        templates=[RuleShape()],
        init_values={"EgivenF": 0.2, "LanguageModel": 0.2, "PassThrough": -2.0},
        init_scale=0.5,
        rounds=3,
        sentences=40,
    )


def done(folder, parts):
    run = Run(folder, parts)
    run.prepare()
    run.tune()
    run.finish()
    return run


def test_the_regularizer_of_an_optimizer_is_that_of_the_run(parts):
    made = replace(parts, optimizer=Recipe.of(FOBOS, lr=1.0), regularizer=L1(0.25))
    (group,) = made.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert (made.optimizer.name, group["lr"], group["regularizer"]) == ("FOBOS", 1.0, L1(0.25))
    with pytest.raises(InputError, match=r"takes L1\(strength=0.25\), and the run L1\(strength=5"):
        replace(parts, optimizer=made.optimizer, regularizer=L1(5.0))


def test_stopped_and_resumed_equals_uninterrupted(parts, tmp_path):
    done(tmp_path / "whole", parts)
    stopped = Run(tmp_path / "stopped", parts, callbacks=[Dies(at=(3, 0))])
    stopped.prepare()
    with pytest.raises(KeyboardInterrupt):
        stopped.tune()
    resumed = Run(tmp_path / "stopped", parts)
    resumed.prepare(resume=True)
    resumed.tune()
    assert resumed.finish() > 0
    for name in FILES:
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "stopped"))
        assert one == other, name


def test_the_scale_of_a_start_does_not_matter(parts, tmp_path, capsys):
    found = []
    for factor in (1.0, 1000.0, 1e-3):
        path = tmp_path / f"{factor}"
        path.write_text(f"EgivenF {0.1 * factor}\nLanguageModel {0.1 * factor}\n")
        start = replace(parts, init_file=str(path), init_values={}, init_scale="auto", rounds=1)
        weights = done(tmp_path / f"run{factor}", start).task.weights.to_dict()
        found.append([weights[name] for name in ("EgivenF", "LanguageModel")])
        assert "init.scale=" in capsys.readouterr().out
    assert found[0] == pytest.approx(found[1], rel=0.05)
    assert found[0] == pytest.approx(found[2], rel=0.05)


def test_a_tuner_of_lists_and_a_folder_of_one_run(parts, tmp_path):
    """The tuner's class alone is said: solver, lists and start come from the run."""
    solver = Recipe.of(KBestMira)
    lists = replace(parts, tuning=Recipe.of(BatchTuner), solving=solver, rounds=1)
    done(tmp_path, lists)
    names, values = read_weights(tmp_path / "weights.txt.gz")
    assert "LanguageModel" in names and any(values)
    with pytest.raises(InputError, match="folder"):
        Run(tmp_path, parts).prepare()
    with pytest.raises(InputError, match="finished"):
        Run(tmp_path, lists).prepare(resume=True)
