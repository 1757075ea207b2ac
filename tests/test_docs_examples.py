"""The documentation: its examples run as it says, and it names every choice that there is."""

import itertools
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from commands import example_source, example_target, run_command, write_few

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.parallel.mixing import Columns
from torchtune_smt.regularizers import GroupLasso, Oscar

# The arguments of train.py that the documentation gives, and one without a class of the user's.
RUNS = {
    "default": "",
    "template": "features=rule_length",
    "metric": "metric=word_f1",
    "sampler": "sampler=best_worst",
    "loss": "loss=squared_hinge",
    "loss_by_target": "loss._target_=squared_hinge.SquaredHinge",
    "regulariser": "regularizer=negative_l1 regularizer.strength=1000",
    "optimizer": "optimizer=clipped_sgd optimizer.lr=0.001 optimizer.clip=inf",
    "unclipped": "optimizer=fobos optimizer.lr=0.001 optimizer.schedule=constant",
    "strategy": "parallel=mean_of_those parallel.shards=2 engine.workers=1 tuner.result=last",
    "solver": "tuner=mean_difference tuner.iterations=1 tuner.result=last tuner.solver.length=2",
    "decoder": "decoder=dictionary decoder.dictionary=dictionary init=zero tuner.result=last",
}
SHORT = ["tuner.epochs=1", "tuner.sentences=15", "decoder.pop_limit=10", "model.folder=model"]

Tuned = Callable[[str], dict[str, float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def tuned(repository, folder):
    """Do all runs, and return a function that reads the weights of one."""
    examples = repository / "docs" / "examples"
    common = ["--config-dir", str(examples / "conf"), "data.test=null", "data.dev=[dev.de,dev.en]"]
    write_few(folder)
    runs = {}
    for name, options in RUNS.items():
        # The decoder of the example has no beam of this kind, and the solver no epochs.
        without = {"decoder": ("decoder.", "model."), "solver": ("tuner.epochs",)}.get(name, ("-",))
        short = [option for option in SHORT if not option.startswith(without)]
        runs[name] = [*common, f"hydra.run.dir={name}", *short, *options.split()]
    write_dictionary(folder / "dictionary")
    with pytest.MonkeyPatch.context() as patch:
        # The user has the files in the current folder, which is importable.
        patch.syspath_prepend(str(examples))
        done = {name: run_command("train", *run, folder=folder) for name, run in runs.items()}

    def read(name):
        path = folder / name / "weights.txt.gz"
        assert path.is_file(), done[name].err
        names, values = read_weights(path)
        return dict(zip(names.names(range(len(names))), values.tolist(), strict=True))

    return read


def write_dictionary(path: Path) -> None:
    """Write the words of each German word's sentences that go with it most often."""
    sides = [example_source("train"), example_target("train")]
    together: Counter[tuple[str, str]] = Counter()
    alone: Counter[str] = Counter()
    for source, target in zip(*sides, strict=True):
        alone.update({*target.split()})
        together.update(itertools.product({*source.split()}, {*target.split()}))
    entries: dict[str, list[tuple[float, str]]] = {}
    for (word, translation), count in together.items():
        entries.setdefault(word, []).append((count / (alone[translation] + 5), translation))
    lines = [
        f"{word} {translation} {share:.6f}\n"
        for word, found in entries.items()
        for share, translation in sorted(found)[-3:]
    ]
    path.write_text("".join(lines))


def test_classes_of_the_users_own_tune(tuned):
    weights = {name: tuned(name) for name in RUNS}
    default = weights["default"]
    assert all(found != default for name, found in weights.items() if name != "default")
    assert "rule_length:1~1" in weights["template"]
    templates = {name.partition(":")[0] for name in weights["template"] if ":" in name}
    assert templates == {"rule_id", "source_ngram", "rule_shape", "rule_length"}
    assert weights["loss"] == weights["loss_by_target"]
    sparse = [value for name, value in weights["regulariser"].items() if ":" in name]
    assert sparse and min(sparse) > 0
    # It is `fobos` where nothing is clipped; its parts are in test_own_optimizers.
    assert weights["optimizer"] == pytest.approx(weights["unclipped"], abs=1e-9)
    assert np.linalg.norm([*weights["solver"].values()]) == pytest.approx(2.0)
    assert any(":" in name for name in weights["strategy"])
    assert "Dictionary" in weights["decoder"]
    assert any(name.startswith("pair:") for name in weights["decoder"])


def test_classes_of_the_users_own_do_what_they_say(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "docs" / "examples"))
    from best_worst import BestWorst
    from mean_of_those import MeanOfThose
    from negative_l1 import NegativeL1
    from squared_hinge import SquaredHinge
    from word_f1 import WordF1

    def kbest(k, **given):
        rows = Rows(np.zeros(k + 1, np.int64), np.zeros(0, np.int32), np.zeros(0))
        return KBest(index=1, rows=rows, **given)

    # a b, then a a b c, then nothing
    begin, tokens = np.array([0, 2, 6, 6]), np.array([0, 1, 0, 0, 1, 2], np.int32)
    bound = WordF1().bind([[["d"]], [["a", "b", "e"], ["c"]]], Vocabulary("a b c d".split()))
    gains = bound.gains(kbest(3, token_begin=begin, tokens=tokens))
    np.testing.assert_allclose(gains, [4 / 5, 4 / 7, 0])
    pairs = BestWorst(3).sample(kbest(4, gain=np.array([0.2, 0.9, 0.9, 0.1])), (1, 1, 0))
    assert pairs.tolist() == [[1, 3], [1, 0]]
    margins = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    losses = SquaredHinge()(margins)
    losses.sum().backward()
    assert losses.tolist() == [4, 0.25, 0]
    assert margins.grad is not None and margins.grad.tolist() == [-4, -1, 0]
    weights = torch.tensor([-2.0, -0.5, 0.0, 1.0])
    assert NegativeL1(0.5).value(weights).item() == 1.25
    assert NegativeL1(0.5).prox(weights, 2.0).tolist() == [-1, 0, 0, 1]
    columns = Columns(Vocabulary(["a"]), 1, 3)
    for values in ({"a": 3.0}, {"a": 0.0, "b": 2.0}, {"a": -1.0, "b": 4.0}):
        columns.add(FrozenWeights.of(values))
    assert MeanOfThose().combine(columns).tolist() == [1, 3]


def test_tuning_from_python(tuned, folder, repository, monkeypatch):
    assert tuned("default")
    here = folder / "python"
    (here / "outputs" / "models").mkdir(parents=True)
    (here / "outputs" / "models" / "example").symlink_to(folder / "model")
    monkeypatch.chdir(here)
    runpy.run_path(str(repository / "docs" / "examples" / "tune_online.py"))
    names, _ = read_weights(here / "weights.txt.gz")
    assert "LanguageModel" in names


def test_a_run_from_python(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(repository / "docs" / "examples" / "a_run.py"))
    assert names["run"].rounds.progress.best.score > 45
    assert read_weights(tmp_path / "outputs" / "from_python" / "weights.txt.gz")


def test_tuning_on_lists_from_python(
    repository,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(repository / "docs" / "examples" / "python_api.py"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["the dog is blue", "it rains", "cats sleep"]
    assert lines[4].startswith("after BLEU 100.00")
    assert lines[5].startswith("after against before: BLEU 100.00 against ")
    assert list(tmp_path.iterdir()) == []


def python_blocks(repository: Path) -> list[str]:
    """The page's blocks of code that are no file of their own."""
    text = (repository / "docs" / "pytorch.md").read_text("utf-8")
    files = {path.read_text("utf-8") for path in (repository / "docs" / "examples").glob("*.py")}
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    return [block for block in blocks if block not in files]


def test_what_the_page_for_pytorch_shows(repository, capsys):
    names: dict[str, object] = {}
    for block in python_blocks(repository):
        exec(block, names)
    told = capsys.readouterr().out.splitlines()
    assert told == ["['a blue dog', 'it rains']", "['LM', 'ends:blue', 'ends:rain']"]


def test_a_neural_scorer_beside_features(repository, capsys):
    runpy.run_path(str(repository / "docs" / "examples" / "neural_scorer.py"))
    features, gains = capsys.readouterr().out.splitlines()
    alone, together = (float(x) for x in gains.replace(",", "").split()[::2])
    assert "'LM'" in features and len(features.split(",")) < 9
    assert together > alone + 1


class ProxMap:
    """A stand-in for torchao's, as its documentation has it."""

    def __init__(self, reg_lambda: float) -> None:
        self.reg_lambda = reg_lambda


def test_maps_for_a_prune_optimizer(repository, monkeypatch):
    pat = SimpleNamespace(ProxMap=ProxMap)
    for name in ("torchao", "torchao.prototype"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torchao.prototype.pat", SimpleNamespace(optim=pat))
    runpy.run_path(str(repository / "docs" / "examples" / "prune_optimizer.py"))
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn((6, 5), generator=generator) * torch.tensor([1.0, 0.01] * 3)[:, None]
    # As PruneOptimizer calls them: rows under vmap, layers whole.
    rows = weights.clone()
    zeros, _ = torch.vmap(pat.ProxRows(0.1).apply_, in_dims=(0, None))(rows, 1.0)
    torch.testing.assert_close(rows, GroupLasso(0.1 * 5**0.5).prox(weights, 1.0))
    assert zeros.tolist() == [0, 1] * 3
    layer = weights.clone()
    zeros, largest = pat.ProxOscar(0.1).apply_(layer, 2.0)
    assert 0 < int(zeros) == int((layer == 0).sum()) < 30
    assert largest == layer.abs().max()
    expected = Oscar(0.1, 0.1 * 2 / 30).prox(weights.flatten(), 2.0)
    torch.testing.assert_close(layer.flatten(), expected)


PAGES = ("extend.md", "lists.md", "pytorch.md")


def test_examples_in_the_text_are_the_files(repository):
    text = "".join((repository / "docs" / p).read_text("utf-8") for p in PAGES)
    examples = repository / "docs" / "examples"
    for path in examples.glob("*.py"):
        assert f"```python\n{path.read_text('utf-8').rstrip()}\n```" in text, path.name
    shown = "features/rule_length optimizer/clipped_sgd tuner/mean_difference decoder/dictionary"
    for name in f"{shown} parallel/mean_of_those".split():
        assert f"```yaml\n{(examples / 'conf' / f'{name}.yaml').read_text().rstrip()}\n```" in text


def test_every_choice_is_described(repository):
    page = repository / "docs" / "tune.md"
    text = page.read_text("utf-8")
    for path in (repository / "conf").glob("*/*.yaml"):
        shown = f"`{path.stem}`" in text or f"{path.parent.name}={path.stem}" in text
        assert shown, f"{path} is not described in {page}"
