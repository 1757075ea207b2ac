"""train with batch tuners, on the bundled example."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from commands import MODEL, Outcome, metrics, run_command
from small_lists import ON_LISTS, put, weights_of

from torchtune_smt.core.textio import read_lines
from torchtune_smt.kbest.store import ListStore

SHORT = ["tuner.iterations=2", "decoder.k=20", "decoder.pop_limit=10", "data.test=null"]
L1 = ["loss=hinge", "optimizer=cumulative_l1", "regularizer.strength=1e-5"]
STARTED = "init.file=batch_l1/weights.txt.gz"


TUNERS = {
    "pro": ["tuner=pro", "tuner.interpolation=1"],
    "last": ["tuner=pro", "tuner.result=last", "tuner.keep_lists=true"],
    "full": ["tuner=mira", "tuner.tune_on=train", "tuner.sentences=60", "lm=full"],
    "l1": ["tuner=stochastic", *L1],
    "scale": ["tuner=mert", "tuner.sparse=scale", "init=file", STARTED],
}


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, str]:
    """What each of the tuners prints; its folder has its name."""
    said = {}
    for name, options in TUNERS.items():
        given = [*MODEL, *SHORT, *options, f"hydra.run.dir=batch_{name}"]
        said[name] = run_command("train", *given, folder=place).check().out
    return said


def scores(out: str) -> list[float]:
    """Return BLEU of dev before and after."""
    found = re.findall(r"^ *dev +(\S+) +(\S+) +\S+$", out, re.MULTILINE)
    return [float(score) for score in found[-1]]


def test_sparse_weights_keep_their_ratios(place, runs):
    values = [weights_of(place / f"batch_{name}/weights.txt.gz") for name in ("l1", "scale")]
    sparse = [{n: w for n, w in found.items() if w != 0 and ":" in n} for found in values]
    assert sparse[0].keys() == sparse[1].keys()
    factors = [sparse[1][name] / sparse[0][name] for name in sparse[0]]
    assert len(factors) > 50
    np.testing.assert_allclose(factors, factors[0], rtol=1e-9)
    assert factors[0] != pytest.approx(1.0)
    assert values[0]["LanguageModel"] != values[1]["LanguageModel"]


@pytest.mark.parametrize("name", TUNERS)
def test_weights_get_better(name: str, runs: dict[str, str], place: Path) -> None:
    out, folder = runs[name], place / f"batch_{name}"
    before, after = scores(out)
    assert after > before + 1 and "best iteration: " in out
    values = weights_of(folder / "weights.txt.gz").values()
    assert np.isfinite([*values]).all() and len(values) >= 10
    for file in ("checkpoint.pt", "checkpoint.names"):
        assert (folder / file).exists() == (name == "last")
    assert (folder / "lists").exists() == (name == "last")


def test_what_is_recorded(runs: dict[str, str], place: Path) -> None:
    lines = [line for line in metrics(place / "batch_pro") if "lists/new" in line]
    assert [line["step"] for line in lines] == [30, 60]
    totals = np.cumsum([line["lists/new"] for line in lines]).tolist()
    assert [line["lists/hypotheses"] for line in lines] == totals
    assert {"bleu/dev", "fit/loss", "fit/pairs", "fit/moved"} < lines[0].keys()
    last = metrics(place / "batch_pro")[-1]
    best = max(line["bleu/dev"] for line in lines)
    assert last["bleu/dev_tuned"] == pytest.approx(best, abs=1e-9)
    assert lines[int(last["best_iteration"]) - 1]["bleu/dev"] == best
    assert f"iteration 1: dev BLEU {lines[0]['bleu/dev']:.2f}" in runs["pro"]


def test_lists_that_are_kept(runs: dict[str, str], place: Path) -> None:
    assert "k-best lists of all iterations" in runs["last"]
    lists = ListStore.open(place / "batch_last" / "lists", n_dense=12)
    lines = [line for line in metrics(place / "batch_last") if "lists/new" in line]
    # Those of the last weights, which gave them their score, are there as well.
    assert lists.sizes[:2] == [line["lists/new"] for line in lines]
    assert len(lists.sizes) == 3
    assert lists.lists().statistics is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["tuner=pro"], "pairs: 50"),
        (["tuner=mira"], "pairs: 15"),
        (["tuner=pro", "sampler=pro"], "pairs: 15"),
        (["sampler=all", "tuner=pro"], "AllPairs"),
    ],
)
def test_pro_takes_fifty_pairs_unless_told_otherwise(options, said, place: Path) -> None:
    assert said in run_command("train", *options, "--cfg", "job", folder=place).check().out


REFUSED = {
    "tuner=mira device=cuda": "device=cuda: this tuner works on the CPU alone",
    "tuner=batch": "tuner.solver._target_ is missing",
    "tuner=mira tuner.sparse=scale": "there are none to start from: name a weights file",
    "tuner=pro decoder.k=1": "decoder.k=1: lists of one hypothesis leave nothing",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_makes_no_sense(options: str, place: Path) -> None:
    arguments = [*MODEL, *options.split(), "hydra.run.dir=bad"]
    run_command("train", *arguments, folder=place).refused(REFUSED[options])


# Stored lists.


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Moses's tuning files: a feature that goes with BLEU, one that does not, and sparse ones."""
    rng = np.random.default_rng(3)
    features, counts = [], []
    for sentence in range(30):
        features.append(f"FEATURES_TXT_BEGIN_0 {sentence} 12 2 good0 bad0")
        counts.append(f"SCORES_TXT_BEGIN_0 {sentence} 12 9 BLEU")
        for m in rng.integers(1, 11, 12).tolist():
            sparse = f"W_{m % 3}={1 + m % 2}"
            features.append(f"{m / 10 + rng.normal() / 20:.4f} {rng.normal():.4f} {sparse}")
            orders = [f"{max(m - n, 0)} {10 - n}" for n in range(4)]
            counts.append(f"{' '.join(orders)} 10")
        features.append("FEATURES_TXT_END_0")
        counts.append("SCORES_TXT_END_0")
    return put(tmp_path_factory.mktemp("lists"), {"features.dat": features, "scores.dat": counts})


def tune_on_lists(lists: Path, *options: str) -> Outcome:
    given = ["decoder.dev=features.dat", "decoder.dev_scores=scores.dat", "data.dev=null"]
    return run_command("train", *ON_LISTS, *given, "init=zero", *options, folder=lists)


@pytest.mark.parametrize("tuner", [["tuner=mira"], ["tuner=stochastic", "loss=softmax"]])
def test_stored_lists(tuner: list[str], lists: Path, tmp_path: Path) -> None:
    out = tune_on_lists(lists, f"hydra.run.dir={tmp_path}", *tuner).check().out
    before, after = scores(out)
    assert after > before + 20
    # There are no words that a command could write.
    assert "Now try" not in out
    lines = [line for line in out.splitlines() if re.search(r"iteration \d+: dev BLEU", line)]
    assert "360 new hypotheses of 360" in lines[0]
    assert all(" 0 new hypotheses of 360" in line for line in lines[1:])
    # MERT and MIRA are done when nothing is new; PRO draws other pairs and may move on.
    assert len(lines) < 15


def test_groups_of_stored_lists(lists: Path, tmp_path: Path) -> None:
    options = ["tuner=grouping", "tuner.iterations=2", "tuner.dev.iterations=2", "tuner.passes=5"]
    options += ["decoder.train=features.dat", "decoder.train_scores=scores.dat"]
    options.append(f"hydra.run.dir={tmp_path}")
    out = tune_on_lists(lists, *options).check().out
    # Nothing comes to the lists in the second iteration.
    assert "iteration 1: " in out and "(0 new)" in out.partition("iteration 2: ")[2]
    names = weights_of(tmp_path / "weights.txt.gz").keys()
    assert {"W_0", "W_1", "W_2"} & names
    # The header, and a line for each feature with a weight at least.
    assert len(read_lines(tmp_path / "groups.tsv.gz")) > len(names)
    outcome = tune_on_lists(lists, *options, "overwrite=true", "decoder.features=dense")
    outcome.refused("the k-best lists have none: say with decoder.dense which of theirs")


def test_runs_on_lists_without_words_have_no_translations(lists: Path, tmp_path: Path) -> None:
    """What stands in their place is no text that could be scored."""
    sweep = ["-m", "tuner=pro", "tuner.iterations=1", "seed=1,2", f"hydra.sweep.dir={tmp_path}"]
    out = tune_on_lists(lists, *sweep).check().out
    error = f"{tmp_path / '0'}: has no translations of dev: features.dat has no words; BLEU by"
    assert f"\nthere is no table of {tmp_path}: {error}" in out
    assert "tells more" not in out
    (tmp_path / "ref").write_text("a b\n" * 30)
    given = [tmp_path / "0", "split=dev", f"references={tmp_path / 'ref'}"]
    run_command("compare", *given, folder=lists).refused(error)
    assert run_command("analyse", "progress", tmp_path, folder=lists).check().out
    weights = f"weights={tmp_path / '0' / 'weights.txt.gz'}"
    said = "features.dat: is one of Moses's tuning files, no n-best list, and has no words; "
    run_command("rerank", weights, "input=features.dat", folder=lists).refused(said)


def test_mert_is_refused_before_a_model_is_built(tmp_path: Path) -> None:
    outcome = run_command("train", "tuner=mert", "hydra.run.dir=bad", folder=tmp_path)
    outcome.refused("up to 50 features, and there are templates", "set features=dense, or take a")
    assert outcome.out == "" and not list(tmp_path.iterdir())


def test_the_cure_that_mert_names_for_lists(lists: Path, tmp_path: Path) -> None:
    mert = ["tuner=mert", "tuner.solver.restarts=2", "tuner.solver.max_features=4"]
    outcome = tune_on_lists(lists, *mert, f"hydra.run.dir={tmp_path / 'bad'}")
    said = "the k-best lists have 5 features, 2 of them dense, and this tuner"
    outcome.refused(said, "set decoder.features=dense, or name some")
    assert "scoring" not in outcome.out
    options = [*mert, "decoder.features=[W,good0]", f"hydra.run.dir={tmp_path}"]
    before, after = scores(tune_on_lists(lists, *options).check().out)
    assert after > before + 20
    assert [*weights_of(tmp_path / "weights.txt.gz")] == ["good0", "W_0", "W_1", "W_2"]


def test_start_weights_of_features_that_lists_do_not_have(lists: Path, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("good0 1\nW_1 2\nW_9 3\nother 4\nbad0 -1\n")
    options = [f"init.file={tmp_path / 'start'}", "decoder.features=[dense,W_0]", "tuner=pro"]
    out = tune_on_lists(lists, *options, f"hydra.run.dir={tmp_path / 'run'}").check().out
    assert "start: 3 of 5 weights are left out, as their features, such as W_1, are not" in out
    assert [*weights_of(tmp_path / "run" / "weights.txt.gz")] == ["good0", "bad0", "W_0"]
    outcome = tune_on_lists(lists, "tuner=pro", "tuner.unique=string", "hydra.run.dir=bad")
    outcome.refused("by their words, and features.dat has none; leave it out")
