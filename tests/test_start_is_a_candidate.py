"""The start is a candidate for the best weights: tuning that makes dev worse is not the result."""

import json

import numpy as np
import pytest
from commands import run_command
from small_lists import ON_LISTS, put, weights_of

from torchtune_smt.core.textio import read_lines
from torchtune_smt.runs import checkpoint

OPTIONS = {
    "online": ["tuner.epochs=3"],
    "pro": ["tuner=pro"],
    "mert": ["tuner=mert", "tuner.solver.restarts=3"],
    "stochastic": ["tuner=stochastic"],
    "grouping": ["tuner=grouping", "tuner.tune_on=dev", "tuner.iterations=2", "tuner.passes=2"],
}

BACKWARDS = """
from torchtune_smt.metrics import NakovBleu

class Backwards:
    '''The worse a translation, the higher its gain; of a corpus it is BLEU, as it says.'''

    from_statistics = True

    def bind(self, references, target_words):
        return Bound(NakovBleu().bind(references, target_words))

class Bound:
    def __init__(self, bound):
        self.bound = bound

    def gains(self, kbest):
        return 1 - self.bound.gains(kbest)
"""
GOOD_START = ["decoder.dev=graded", "+init.values.LM_0=0.1", "+init.values.Good_0=0.5"]
METRIC = "metric._target_=backwards.Backwards"


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Lists whose order is good, with two features that say little of it (and sparse ones).

    In those called graded, one feature says how good each entry is.
    """
    rng = np.random.default_rng(5)
    files = {name: [] for name in ("dense", "sparse", "graded", "dev.en")}
    for sentence in range(40):
        words = [f"w{w}" for w in rng.integers(0, 30, 12)]
        files["dev.en"].append(" ".join(words))
        for wrong in (1, *rng.permutation(np.arange(2, 9)).tolist()):
            guess = list(words)
            for place in rng.choice(12, wrong, replace=False):
                guess[place] = "x"
            lm, tm = rng.normal(size=2).round(3)
            head = f"{sentence} ||| {' '.join(guess)} ||| LM= {lm}"
            files["dense"].append(f"{head} TM= {tm} ||| 0")
            files["graded"].append(f"{head} Good= {-wrong} ||| 0")
            files["sparse"].append(f"{head} TM= {tm} id_{rng.integers(6)}= 1 ||| 0")
    more = {"dev.de": "ja\n" * 40, "backwards.py": BACKWARDS}
    return put(tmp_path_factory.mktemp("lists"), {**files, **more})


def tune(lists, name, tuner, *options):
    """Return what a run says, and its record."""
    given = [*ON_LISTS, "data.dev=[dev.de,dev.en]", "data.tokenize=false"]
    given += [f"decoder.dev={'sparse' if tuner == 'grouping' else 'dense'}", *OPTIONS[tuner]]
    given += [*options, f"hydra.run.dir={name}"]
    out = run_command("train", *given, folder=lists).check().out
    return out, [json.loads(line) for line in read_lines(lists / name / "metrics.jsonl")]


@pytest.mark.parametrize("tuner", OPTIONS)
def test_lists_on_which_tuning_makes_dev_worse(tuner, lists):
    folder = lists / tuner
    out, lines = tune(lists, tuner, tuner, "init=zero")
    before = lines[0]["bleu/dev"]
    scores = [line["bleu/dev"] for line in lines[1:] if "bleu/dev" in line]
    # What was tuned; with groups, the runs on dev have a start that is a candidate, too.
    found = [line["fit/bleu"] for line in lines if "fit/bleu" in line] or scores
    assert found and max(found) < before - 5
    assert max(scores) <= before
    unit = "epoch" if tuner == "online" else "iteration"
    assert lines[-1][f"best_{unit}"] == 0
    assert lines[-1]["bleu/dev_tuned"] == before
    zero = "the order of the lists, as all weights"
    for said in (
        f"best {unit}: 0 (the start)",
        f"before tuning: dev BLEU {before:.2f} ({zero} are 0)",
        f"tuning has gained nothing: no {unit} was better on dev than the start",
        "(all are 0: they rank nothing, and leave lists in the order they come in); try",
    ):
        assert said in out
    assert weights_of(folder / "weights.txt.gz") == {}
    fields = [line.split(" ||| ") for line in read_lines(lists / "dense")]
    first = {int(number): words for number, words, *_ in reversed(fields)}
    assert read_lines(folder / "dev.translations.txt") == [first[n] for n in range(40)]
    assert not (folder / "groups.tsv.gz").exists()


@pytest.mark.parametrize(
    ("tuner", "result"),
    [("online", "average"), ("online", "best"), ("pro", "last"), ("stochastic", "best")],
)
def test_a_start_that_ranks(tuner, result, lists):
    """Tuned for the worst translations: the start's weights are kept, or not, as was asked for."""
    name = f"{tuner}_{result}"
    options = [*GOOD_START, METRIC, f"tuner.result={result}"]
    options += ["optimizer.lr=0.5"] if tuner == "online" else ["tuner.interpolation=1"]
    out, lines = tune(lists, name, tuner, *options)
    weights = weights_of(lists / name / "weights.txt.gz")
    assert (weights == {"LM_0": 0.1, "Good_0": 0.5}) == (result == "best")
    assert (lines[-1]["bleu/dev_tuned"] == lines[0]["bleu/dev"]) == (result == "best")
    assert "order of the lists" not in out and "all are 0" not in out
    said = "gained nothing: dev BLEU is no better than before; tuner.result=best keeps"
    if result == "best":
        said = " was better on dev than the start, and its weights are kept; try"
    assert said in out


def test_a_killed_run_still_knows_its_start(lists, monkeypatch):
    options = [METRIC, *GOOD_START]
    tune(lists, "whole", "stochastic", *options)
    save = checkpoint.save_checkpoint

    def save_and_die(*arguments):
        save(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_checkpoint", save_and_die)
        with pytest.raises(AssertionError, match="exit code 130"):
            tune(lists, "killed", "stochastic", *options)
    resumed = run_command("train", "resume=killed", METRIC, folder=lists).check().out
    assert "best iteration: 0 (the start)" in resumed
    for file in ("weights.txt.gz", "dev.translations.txt"):
        assert (lists / "killed" / file).read_bytes() == (lists / "whole" / file).read_bytes()
