"""Options that change nothing are refused by the commands that do not tune, too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from commands import Outcome, Run, run_command

from torchtune_smt.core.resources import example_folder

EXAMPLE = example_folder()
FILES = ["data=example", "model=files", "model.grammar=none", "model.language_model=none"]
# What tuning alone takes, and other options that translating does without.
OF_TUNING = """loss=hinge loss.reduction=mean sampler=all regularizer.strength=1 optimizer.lr=0.1
    tuner=pro tuner.epochs=1 init=zero init.file=x +init.values.x=1 parallel=stale engine.workers=2
    callbacks=[{_target_:my.Callback}]"""
TRANSLATE = {
    option: f"translating takes no {re.split('[.=]', option.removeprefix('+'))[0]}"
    for option in OF_TUNING.split()
} | {
    "seed=2": "translating draws nothing at random",
    "device=cuda": "translating works on the CPU alone",
    "lm=full": "translating takes the language model of the whole bitext",
    "report=true": "translating writes no report",
    "resume=x": "translating goes on with no run",
    "overwrite=true": "translating writes no run",
    "data.dev=[a,b]": "translating reads `input` alone",
    "decoder.k=7": "lists of decoder.k translations are for mbr=true (n_best says more)",
}


def refused(outcome: Outcome, reason: str, option: str) -> None:
    assert outcome.code == 1
    line = f"error: {reason}, and {option} would change nothing; leave it out\n"
    assert outcome.err == line
    assert outcome.out == ""


@pytest.mark.parametrize("option", TRANSLATE)
def test_translate(run: Run, option: str) -> None:
    given = [f"weights={run.weights}", f"input={EXAMPLE / 'test.de'}", "output=never"]
    refused(run_command("translate", *given, option, folder=run.place), TRANSLATE[option], option)
    assert not (run.place / "never").exists()


@pytest.mark.parametrize("option", ["data.train=train", "data.folders=x", "data.max_length=9"])
def test_translate_with_a_model_of_files(tmp_path: Path, option: str) -> None:
    given = ["weights=none", "input=none", *FILES, option]
    reason = "model=files is not built from a bitext"
    refused(run_command("translate", *given, folder=tmp_path), reason, option)


@pytest.mark.parametrize(
    "options",
    [
        ["threads=2", "decoder.pop_limit=9", "data.test=null"],
        ["mbr=true", "decoder.k=7", "metric=bleu_plus_one"],
        ["n_best=2", "model.folder=outputs/models/example", "features=sparse"],
        ["data.train=train", "resume=null", "init.file=null"],
    ],
    ids=lambda options: options[0],
)
def test_what_translate_makes_use_of(run: Run, options: list[str]) -> None:
    (run.place / "two").write_text("wo ist der bahnhof ?\nja .\n")
    given = [f"weights={run.weights}", "input=two", *options]
    run_command("translate", *given, folder=run.place).check()


REFERENCES = "the references are those of references="
ONE = "there is one system, and nothing to test"
NO_RUNS = "there are no two runs that could differ in the seed"
NAMED = "systems= says which runs are one system"
EVALUATE: list[tuple[list[str], str, str]] = [
    (["a", "references=[r]"], REFERENCES, "split=dev"),
    (["a", "b", "references=[r]"], REFERENCES, "data=example"),
    (["a", "references=[r]", "data=example"], REFERENCES, "data=example"),
    (["a", "references=[r]"], ONE, "test=bootstrap"),
    (["a", "references=[r]"], ONE, "baseline=a"),
    (["run"], ONE, "baseline=run"),
    (["a", "b", "references=[r]"], NO_RUNS, "group_seeds=false"),
    (["run", "a", "references=[r]"], NO_RUNS, "group_seeds=false"),
    (["systems={x:[a],y:[b]}", "references=[r]"], NAMED, "group_seeds=true"),
]


@pytest.fixture(scope="module")
def texts(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Translations, references, and runs with two seeds."""
    folder = tmp_path_factory.mktemp("texts")
    for name in "abr":
        (folder / name).write_text((EXAMPLE / "test.en.0").read_text())
    (folder / "b").write_text((EXAMPLE / "test.en.1").read_text())
    for seed, name in enumerate(("run", "other")):
        shutil.copytree(run.folder, folder / name)
        record = folder / name / ".hydra" / "overrides.yaml"
        record.write_text(yaml.safe_dump([*yaml.safe_load(record.read_text()), f"seed={seed}"]))
    return folder


@pytest.mark.parametrize("command", ["evaluate", "compare"])
@pytest.mark.parametrize(("given", "reason", "option"), EVALUATE)
def test_evaluate(texts: Path, command: str, given: list[str], reason: str, option: str) -> None:
    arguments = [*given, *([] if option in given else [option]), "metrics=[bleu]", "samples=20"]
    refused(run_command(command, *arguments, folder=texts), reason, option)


@pytest.mark.parametrize(
    "given",
    [
        ["a", "data=example", "split=test"],
        ["a", "references=[r]", "data=example", "split=test", "html=a.html"],
        # Of a run, the split says which translations.
        ["run", "references=[r]", "split=test"],
        ["a", "b", "references=[r]", "test=bootstrap", "baseline=b"],
        ["run", "other", "group_seeds=false"],
    ],
    ids=" ".join,
)
def test_what_evaluate_makes_use_of(texts: Path, given: list[str]) -> None:
    arguments = [*given, "metrics=[bleu]", "samples=20"]
    run_command("evaluate", *arguments, folder=texts).check()


def test_progress(texts: Path) -> None:
    for given, reason in ((["run"], NO_RUNS), (["systems={x:[run],y:[other]}"], NAMED)):
        arguments = ["progress", *given, "group_seeds=false"]
        refused(run_command("analyse", *arguments, folder=texts), reason, "group_seeds=false")
    arguments = ["progress", "run", "other", "group_seeds=false"]
    run_command("analyse", *arguments, folder=texts).check()
