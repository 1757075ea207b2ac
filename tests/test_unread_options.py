"""What ``+`` adds on the command line is read by something, or refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from commands import MODEL, SMALL, Run, run_command

from torchtune_smt.core.resources import config_folder

PRO = "tuner=pro "
GROUPING = "tuner=grouping "
OF_TRAIN = {
    "+foo=1": "train has no option foo",
    "++foo=1": "train has no option foo",
    "+lr=0.1": "train has no option lr",
    "+foo={a:1,b:2}": "train has no option foo",
    "+loss@foo=hinge": "train has no option foo",
    "+init.foo=1": "init has no option foo",
    "+features.foo=[]": "features has no option foo",
    "+experiment.foo=1": "experiment has no option foo",
    "+data.foo=1": "data has no option foo",
    "+data.compounds=x": "data has no option compounds",
    "+model.foo=1": "model (BitextModel) has no option foo",
    "+loss.width=2": "loss (Logistic) has no option width",
    "+optimizer.speed=3": "optimizer (AdaGrad) has no option speed",
    "+regularizer.lambda2=3": "regularizer (L1) has no option lambda2",
    "+parallel.shards=3": "parallel (Serial) has no option shards",
    "+engine.foo=1": "engine (LocalEngine) has no option foo",
    "+tuner.foo=1": "tuner (OnlineTuner) has no option foo",
    "+tuner={foo:1}": "tuner (OnlineTuner) has no option foo",
    "+tuner.solver.foo=1": "tuner (OnlineTuner) has no option solver",
    "+tuner.solver={foo:1}": "tuner (OnlineTuner) has no option solver",
    # Of other tuners.
    "+tuner.passes=3": "tuner (OnlineTuner) has no option passes",
    "+tuner.iterations=3": "tuner (OnlineTuner) has no option iterations",
    f"{PRO}+tuner.batch_size=4": "tuner (BatchTuner) has no option batch_size",
    f"{PRO}+tuner.solver.foo=1": "tuner.solver (Pro) has no option foo",
    f"{GROUPING}+tuner.dev.foo=1": "tuner.dev has no option foo",
    f"{GROUPING}+tuner.minimizer.foo=1": "tuner.minimizer has no option foo",
    f"{GROUPING}+tuner.clusters.passes=1": "tuner.clusters has no option passes",
    # Arguments that a class gets from elsewhere.
    "+tuner.seed=4": "tuner (OnlineTuner) has no option seed",
    "+decoder.threads=2": "decoder (HieroDecoder) has no option threads",
    "+optimizer.unregularized=2": "optimizer (AdaGrad) has no option unregularized",
    f"{PRO}+tuner.solver.device=cuda": "tuner.solver (Pro) has no option device",
}
CURES = {
    "+lr=0.1": "did you mean optimizer.lr?",
    "+tuner.seed=4": "did you mean seed?",
    "+decoder.threads=2": "did you mean threads?",
    f"{PRO}+tuner.solver.device=cuda": "did you mean device?",
    "+data.compounds=x": "did you mean data.split_compounds?",
}


def check(folder: Path, command: list[str], reason: str, added: str, cure: str) -> None:
    outcome = run_command(*command, folder=folder)
    assert outcome.code == 1
    assert outcome.err == f"error: {reason}, and {added} would change nothing; {cure}\n"
    assert outcome.out == ""
    assert not list(folder.iterdir())


@pytest.mark.parametrize("options", OF_TRAIN)
def test_what_tuning_does_not_read(tmp_path: Path, options: str) -> None:
    *chosen, added = options.split(" ")
    cure = CURES.get(options)
    command = ["train", *chosen, added, "hydra.run.dir=bad"]
    if cure is None:
        outcome = run_command(*command, folder=tmp_path)
        assert outcome.err.count("\n") == 1
        cure = outcome.err.strip().rpartition("; ")[2]
        assert cure == "leave it out" or cure.startswith("did you mean ")
    check(tmp_path, command, OF_TRAIN[options], added, cure)


OTHERS = {
    "evaluate": ["systems=a", "references=b"],
    "compare": ["systems=a", "references=b"],
    "rerank": ["weights=a", "input=b"],
    "translate": ["weights=a", "input=b"],
    "build_model": [],
    "analyse": ["explain", "a"],
}


@pytest.mark.parametrize("command", OTHERS)
@pytest.mark.parametrize("added", ["+foo=1", "+engine=ray", "+tuner.foo=1", "+tuner.solver.foo=1"])
def test_what_other_commands_do_not_read(tmp_path: Path, command: str, added: str) -> None:
    name = added.strip("+").partition("=")[0]
    reason = f"{command} has no option {name.partition('.')[0]}"
    if command == "translate" and name != "foo":
        reason = f"translating takes no {name.partition('.')[0]}"
    check(tmp_path, [command, *OTHERS[command], added], reason, added, "leave it out")


SHORT = "_target_: own_added.Own\nreduction: sum\n"
OWN = """\
class Own:
    def __init__(self, reduction, **options):
        self.reduction, self.width = reduction, options.pop("width", 1.0)

    def __call__(self, margins):
        return (self.width - margins).clamp_min(0) ** 2
"""


@pytest.mark.parametrize(
    "options",
    [
        ["++seed=2", "++init.values.Glue=0.2", "+tuner.keep_lists=true", "++tuner={epochs: 1}"],
        # By others, which are made of it.
        ["+models=outputs/models", "model.folder=${models}/example"],
        ["+place.models=[outputs]", "model.folder=${place.models[0]}/models/example"],
        # A group of the user's own, for other groups.
        ["+preset=short", "--config-dir=settings_added"],
        ["loss=taking", "+loss.width=2", "--config-dir=settings_added"],
        # What a file adds and others name.
        ["experiment=named", "--config-dir=settings_added"],
    ],
    ids=lambda options: options[0],
)
def test_what_is_read(run: Run, options: list[str]) -> None:
    folder = run.place / "settings_added"
    for name, text in {
        "preset/short": "# @package _global_\ntuner:\n  epochs: 1\n",
        "loss/taking": SHORT,
        "experiment/named": "# @package _global_\nplace: outputs\n"
        "model:\n  folder: ${place}/models/example\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
    (run.place / "own_added.py").write_text(OWN)
    given = [*MODEL, *SMALL, "data.test=null", "threads=2", "tuner.sentences=5"]
    given += ["hydra.run.dir=added", "overwrite=true"]
    run_command("train", *given, *options, folder=run.place).check()


FILES = {
    "experiment/mine": (
        "# @package _global_\ndefaults:\n  - override /tuner: pro\n\ntuner:\n  itreations: 3\n",
        "tuner (BatchTuner) has no option itreations, and tuner.itreations would change nothing; "
        "did you mean tuner.iterations?",
        6,
    ),
    "loss/mine": (
        "_target_: torchtune_smt.losses.Hinge\n\nwidth: 2\n",
        "loss (Hinge) has no option width, and loss.width would change nothing; take it out",
        3,
    ),
    "tuner/mine": (
        "defaults:\n  - pro\nsolver: {sigma: 2,\n  weight: 1}\n",
        "tuner.solver (Pro) has no option weight, and tuner.solver.weight would change nothing; "
        "take it out",
        4,
    ),
    # What only other choices have.
    "experiment/mine ": (
        "# @package _global_\ntuner:\n  iterations: 3\n",
        "tuner (OnlineTuner) has no option iterations, and tuner.iterations would change nothing; "
        "take it out",
        3,
    ),
    # A file behind the chosen one, by its folder.
    "loss/mine ": (
        "defaults:\n  - base\n",
        "loss (Hinge) has no option width, and loss.width would change nothing; take it out",
        None,
    ),
    "preset/mine": (
        "# @package _global_\nnothing: 1\n",
        "train has no option nothing, and nothing would change nothing; take it out",
        2,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_the_users_files_add_is_read(tmp_path: Path, name: str) -> None:
    text, message, line = FILES[name]
    path = tmp_path / "settings" / f"{name.strip()}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (path.parent / "base.yaml").write_text("defaults:\n  - hinge\nwidth: 2\n")
    where = f"{path}:{line}" if line else str(path.parents[1])
    group = name.partition("/")[0]
    chosen = f"{'+' * (group == 'preset')}{group}=mine"
    outcome = run_command(
        "train", chosen, "--config-dir=settings", "hydra.run.dir=bad", folder=tmp_path
    )
    assert outcome.code == 1
    assert outcome.err == f"error: {where}: {message}\n"
    assert not (tmp_path / "bad").exists()


CHOICES = [
    [f"{group.name}={path.stem}" for path in sorted(group.glob("*.yaml"))]
    for group in sorted(config_folder().iterdir())
    if group.is_dir() and group.name != "experiment"
]


# A choice of each group at a time.
@pytest.mark.parametrize(
    "choices", list(itertools.zip_longest(*CHOICES)), ids=lambda some: str(next(filter(None, some)))
)
def test_what_the_package_sets_is_read_of_a_users_copy(
    tmp_path: Path, choices: tuple[str | None, ...]
) -> None:
    """A file of the user's that is one of the package's under another name is taken."""
    arguments = ["--config-dir=settings", "hydra.run.dir=bad"]
    for group, name in (choice.split("=") for choice in choices if choice):
        (tmp_path / "settings" / group).mkdir(parents=True)
        text = (config_folder() / group / f"{name}.yaml").read_text("utf-8")
        (tmp_path / "settings" / group / "mine.yaml").write_text(text, "utf-8")
        arguments.append(f"{group}=mine")
    # What is looked at next is out of range.
    arguments += ["seed=-1", "data.name=x", "data.source_language=a", "data.target_language=b"]
    outcome = run_command("train", *arguments, folder=tmp_path)
    assert outcome.code == 1
    assert outcome.err.startswith("error: seed "), outcome.err
