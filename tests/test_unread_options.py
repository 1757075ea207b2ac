"""What nobody reads, or what changes nothing in commands that do not tune, is refused."""

import itertools
import re
import shutil

import pytest
import yaml
from commands import MODEL, SMALL, run_command
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from small_lists import put

from torchtune_smt.cli.spending import INJECTED, options_taken
from torchtune_smt.core.resources import config_folder, example_folder

PRO = "tuner=pro "
GROUPING = "tuner=grouping "
# What is added, why it is refused, and what may be meant.
OF_TRAIN = {
    "+foo=1": "train has no option foo",
    "+lr=0.1": "train has no option lr; did you mean optimizer.lr?",
    "+loss@foo=hinge": "train has no option foo",
    "+init.foo=1": "init has no option foo",
    "+data.compounds=x": "data has no option compounds; did you mean data.split_compounds?",
    "+loss.width=2": "loss (Logistic) has no option width",
    "+tuner={foo:1}": "tuner (OnlineTuner) has no option foo",
    # Of other tuners.
    "+tuner.iterations=3": "tuner (OnlineTuner) has no option iterations",
    f"{PRO}+tuner.solver.foo=1": "tuner.solver (Pro) has no option foo",
    f"{GROUPING}+tuner.dev.foo=1": "tuner.dev has no option foo",
    f"{GROUPING}+tuner.clusters.passes=1": "tuner.clusters has no option passes",
    # Arguments that a class gets from elsewhere.
    "+tuner.seed=4": "tuner (OnlineTuner) has no option seed; did you mean seed?",
    f"{PRO}+tuner.solver.device=cuda": (
        "tuner.solver (Pro) has no option device; did you mean device?"
    ),
}


def refused(outcome, reason, option, cure="leave it out"):
    assert (outcome.code, outcome.out) == (1, "")
    said = re.escape(f"error: {reason}, and {option} would change nothing; ")
    assert re.fullmatch(f"{said}({cure})\n", outcome.err), outcome.err


@pytest.mark.parametrize("options", OF_TRAIN)
def test_what_tuning_does_not_read(tmp_path, options):
    *chosen, added = options.split(" ")
    reason, _, cure = OF_TRAIN[options].partition("; ")
    cure = re.escape(cure) or r"leave it out|did you mean [\w.]+\?"
    outcome = run_command("train", *chosen, added, "hydra.run.dir=bad", folder=tmp_path)
    refused(outcome, reason, added, cure)
    assert not list(tmp_path.iterdir())


OTHERS = {
    "evaluate": ["systems=a", "references=b"],
    "compare": ["systems=a", "references=b"],
    "rerank": ["weights=a", "input=b"],
    "translate": ["weights=a", "input=b"],
    "build_model": [],
    "analyse": ["explain", "a"],
}


@pytest.mark.parametrize("command", OTHERS)
@pytest.mark.parametrize("added", ["+foo=1", "+engine=ray", "+tuner.solver.foo=1"])
def test_what_other_commands_do_not_read(tmp_path, command, added):
    name = added.strip("+").partition("=")[0]
    reason = f"{command} has no option {name.partition('.')[0]}"
    if command == "translate" and name != "foo":
        reason = f"translating takes no {name.partition('.')[0]}"
    refused(run_command(command, *OTHERS[command], added, folder=tmp_path), reason, added)
    assert not list(tmp_path.iterdir())


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
        ["+place.models=[outputs]", "model.folder=${place.models[0]}/models/example"],
        # A group of the user's own, for other groups.
        ["+preset=short", "--config-dir=settings_added"],
        ["loss=taking", "+loss.width=2", "--config-dir=settings_added"],
        # What a file adds and others name.
        ["experiment=named", "--config-dir=settings_added"],
    ],
    ids=lambda options: options[0],
)
def test_what_is_read(run, options):
    named = "# @package _global_\nplace: outputs\nmodel:\n  folder: ${place}/models/example\n"
    files = {"preset/short.yaml": "# @package _global_\ntuner:\n  epochs: 1\n"}
    files |= {"loss/taking.yaml": SHORT, "experiment/named.yaml": named}
    put(run.place / "settings_added", files)
    put(run.place, {"own_added.py": OWN})
    given = [*MODEL, *SMALL, "data.test=null", "threads=2", "tuner.sentences=5"]
    given += ["hydra.run.dir=added", "overwrite=true"]
    run_command("train", *given, *options, folder=run.place).check()


OF_USERS = {
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
    "preset/mine": (
        "# @package _global_\nnothing: 1\n",
        "train has no option nothing, and nothing would change nothing; take it out",
        2,
    ),
}


@pytest.mark.parametrize("name", OF_USERS)
def test_what_the_users_files_add_is_read(tmp_path, name):
    text, message, line = OF_USERS[name]
    path = tmp_path / "settings" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    group = name.partition("/")[0]
    chosen = f"{'+' * (group == 'preset')}{group}=mine"
    outcome = run_command(
        "train", chosen, "--config-dir=settings", "hydra.run.dir=bad", folder=tmp_path
    )
    assert outcome.code == 1
    assert outcome.err == f"error: {path}:{line}: {message}\n"
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
def test_what_the_package_sets_is_read_of_a_users_copy(tmp_path, choices):
    """A file of the user's that is one of the package's under another name is taken."""
    arguments = ["--config-dir=settings", "hydra.run.dir=bad"]
    for group, name in (choice.split("=") for choice in choices if choice):
        (tmp_path / "settings" / group).mkdir(parents=True)
        text = (config_folder() / group / f"{name}.yaml").read_text("utf-8")
        (tmp_path / "settings" / group / "mine.yaml").write_text(text, "utf-8")
        arguments.append(f"{group}=mine")
    # Each class says which options it takes: all others are refused.
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = compose("train", list(filter(None, choices)))
    for holder in INJECTED:
        if OmegaConf.select(cfg, f"{holder}._target_") is not None:
            names = options_taken(cfg, holder)
            assert names is not None and "foo" not in names, holder
    # What is looked at next is out of range.
    arguments += ["seed=-1", "data.name=x", "data.source_language=a", "data.target_language=b"]
    run_command("train", *arguments, folder=tmp_path).refused("error: seed ")


# --- what changes nothing in commands that do not tune ---

EXAMPLE = example_folder()
FILES = ["data=example", "model=files", "model.grammar=none", "model.language_model=none"]
# What tuning alone takes, and other options that translating does without.
OF_TUNING = """loss=hinge sampler=all regularizer.strength=1 optimizer.lr=0.1 tuner=pro
    +init.values.x=1 parallel=stale engine.workers=2 callbacks=[{_target_:my.Callback}]"""
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


@pytest.mark.parametrize("option", TRANSLATE)
def test_translate(run, option):
    given = [f"weights={run.weights}", f"input={EXAMPLE / 'test.de'}", "output=never"]
    refused(run_command("translate", *given, option, folder=run.place), TRANSLATE[option], option)
    assert not (run.place / "never").exists()


def test_translate_with_a_model_of_files(tmp_path):
    given = ["weights=none", "input=none", *FILES, "data.max_length=9"]
    reason = "model=files is not built from a bitext"
    refused(run_command("translate", *given, folder=tmp_path), reason, given[-1])


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
def test_what_translate_makes_use_of(run, options):
    (run.place / "two").write_text("wo ist der bahnhof ?\nja .\n")
    given = [f"weights={run.weights}", "input=two", *options]
    run_command("translate", *given, folder=run.place).check()


REFERENCES = "the references are those of references="
ONE = "there is one system, and nothing to test"
NO_RUNS = "there are no two runs that could differ in the seed"
NAMED = "systems= says which runs are one system"
EVALUATE = [
    (["a", "references=[r]"], REFERENCES, "split=dev"),
    (["a", "references=[r]", "data=example"], REFERENCES, "data=example"),
    (["a", "references=[r]"], ONE, "test=bootstrap"),
    (["a", "references=[r]"], ONE, "baseline=a"),
    (["a", "b", "references=[r]"], NO_RUNS, "group_seeds=false"),
    (["run", "a", "references=[r]"], NO_RUNS, "group_seeds=false"),
    (["systems={x:[a],y:[b]}", "references=[r]"], NAMED, "group_seeds=true"),
]


@pytest.fixture(scope="module")
def texts(run, tmp_path_factory):
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


@pytest.mark.parametrize("number", range(len(EVALUATE)))
def test_evaluate(texts, number):
    given, reason, option = EVALUATE[number]
    arguments = [*given, *([] if option in given else [option]), "metrics=[bleu]", "samples=20"]
    # They are one command.
    command = ("evaluate", "compare")[number % 2]
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
def test_what_evaluate_makes_use_of(texts, given):
    arguments = [*given, "metrics=[bleu]", "samples=20"]
    run_command("evaluate", *arguments, folder=texts).check()


def test_progress(texts):
    arguments = ["progress", "run", "group_seeds=false"]
    refused(run_command("analyse", *arguments, folder=texts), NO_RUNS, "group_seeds=false")
    run_command("analyse", *arguments, "other", folder=texts).check()
