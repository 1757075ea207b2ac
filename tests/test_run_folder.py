"""Run folders of strangers: nothing of them runs, and nothing is written where they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import MODEL, SMALL, Run, run_command, train, train_until_saved
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from torchtune_smt.cli import record
from torchtune_smt.cli.command_line import quoted, split_arguments
from torchtune_smt.cli.record import Settings, says_where, take_up
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove
from torchtune_smt.core.resources import config_folder, example_folder
from torchtune_smt.grammar import load_grammar, write_grammar

EXAMPLE = example_folder()
PRECIOUS = "what the user has written\n"


def change(folder: Path, values: dict[str, Any], choices: dict[str, Any] | None = None) -> None:
    """Change what a run's folder says of options and choices of groups."""
    config, hydra = folder / "config.yaml", folder / ".hydra" / "hydra.yaml"
    cfg, known = yaml.safe_load(config.read_text()), yaml.safe_load(hydra.read_text())
    for option, value in values.items():
        *groups, name = option.split(".")
        holder = cfg
        for group in groups:
            holder = holder[int(group) if isinstance(holder, list) else group]
        holder[int(name) if isinstance(holder, list) else name] = value
    known["hydra"]["runtime"]["choices"] |= choices or {}
    config.write_text(yaml.safe_dump(cfg))
    hydra.write_text(yaml.safe_dump(known))


def composed(*overrides: str) -> DictConfig:
    return deepcopy(_composed(overrides))


@cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train", list(overrides), return_hydra_config=True)


def recorded(folder: Path, *overrides: str) -> DictConfig:
    """Record a run of some overrides; return its configuration."""
    cfg = composed(*overrides)
    choices = OmegaConf.to_container(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    OmegaConf.resolve(cfg)
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    hydra = {"hydra": {"runtime": {"choices": choices}}}
    for name, part in {
        "config.yaml": cfg,
        ".hydra/hydra.yaml": hydra,
        ".hydra/overrides.yaml": list(overrides),
    }.items():
        (folder / name).write_text(OmegaConf.to_yaml(part))
    return cfg


def taken(folder: Path, *given: str, needless: Collection[str] = ()) -> tuple[Settings, DictConfig]:
    """Take a run up; return what is known of it, and the configuration."""
    settings = take_up(folder, given, needless=needless)
    cfg = composed(*settings.recorded, *given)
    with open_dict(cfg):
        del cfg["hydra"]
    settings.apply(cfg)
    OmegaConf.resolve(cfg)
    return settings, cfg


# What is taken


def documented() -> Iterator[str]:
    """The overrides of every command of the documentation that tunes."""
    root = config_folder().parent
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = page.read_text("utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ +(?:python train\.py|torchtune-smt train) (.*)$", text, re.M):
            if " -m " not in f" {line}":
                yield line


# Classes of the user's own, and what says where this very run lies.
GIVEN_AGAIN = re.compile(r".*_target_|\+loss\.width=|\+tuner\.size=|hydra\.|resume=|.*\.\.\.")

PLAIN = [
    "data.name=mine",
    "data.dev=[dev.de,'../a folder/dev.en','/data/b,c/dev.en']",
    "data.folders=[/data/de-en,../shared/data]",
    "data.test=null",
    "model.folder=/models/mine",
    "model.discount_fallback=null",
    "init.values.LanguageModel=-0.5",
    "+init.values.PhraseModel_0=0.3",
    "init.values.Glue=1e-5",
    "~init.values.WordPenalty",
    "~decoder.max_span",
    "optimizer.lr=1e-7",
    "regularizer.strength=1e-5",
    "tuner.patience=3",
    "tuner.shuffle=false",
    "seed=3",
    "lm=full",
]


def test_settings_are_taken(tmp_path: Path) -> None:
    expected = recorded(tmp_path, *PLAIN)
    settings, cfg = taken(tmp_path)
    assert cfg == expected
    assert settings.has_run and settings.names_model and not settings.may_write_model
    assert list(settings.overrides) == PLAIN


def test_every_choice_is_taken(tmp_path: Path) -> None:
    choices = {}
    for folder in filter(Path.is_dir, config_folder().iterdir()):
        files = [path for path in sorted(folder.glob("*.yaml")) if "???" not in path.read_text()]
        choices[folder.name] = [path.stem for path in files]
    del choices["engine"], choices["experiment"]
    for number in range(max(map(len, choices.values()))):
        overrides = [f"{group}={names[number % len(names)]}" for group, names in choices.items()]
        expected = recorded(tmp_path / str(number), *overrides)
        assert taken(tmp_path / str(number))[1] == expected, overrides


def test_settings_of_the_documentation_are_taken(tmp_path: Path) -> None:
    lines = 0
    for line in sorted(set(documented()))[::5]:
        found = split_arguments(shlex.split(line, comments=True)).overrides
        found = [o for o in found if not says_where(o) and not GIVEN_AGAIN.match(o)]
        try:
            expected = recorded(tmp_path / str(lines), *found)
        except (HydraException, OmegaConfBaseException):
            continue
        assert taken(tmp_path / str(lines))[1] == expected, line
        lines += 1
    assert lines > 5


def test_no_record_says_where_to_compute(tmp_path: Path) -> None:
    elsewhere = ["engine=ray", "engine.workers=1000", "threads=1000", "device=cuda"]
    elsewhere += ["decoder.keep_mb=1e6", "+parallel.workers=100000"]
    recorded(tmp_path, "seed=2", *elsewhere, "lm=full")
    settings, cfg = taken(tmp_path, "engine.workers=2")
    assert settings.elsewhere == [o for o in elsewhere if o != "engine.workers=1000"]
    assert (cfg.seed, cfg.lm, cfg.threads, cfg.device) == (2, "full", None, "cpu")
    assert cfg.decoder.keep_mb == 500 and "workers" not in cfg.parallel
    assert cfg.engine == composed("engine.workers=2").engine


def test_what_is_given_replaces_what_was_recorded(tmp_path: Path) -> None:
    settings = take_up(tmp_path, ["seed=1"])
    assert not settings.has_run and not settings.names_model and settings.may_write_model
    assert take_up(tmp_path, ["data=fisher"]).names_model
    recorded(tmp_path, "decoder.k=3", "features=dense", "+init.values.x=1", "optimizer=fobos")
    _, cfg = taken(tmp_path, "decoder.k=4", "+init.values.x=2", "optimizer=adagrad", "seed=5")
    assert (cfg.decoder.k, cfg.init["values"].x, cfg.seed) == (4, 2, 5)
    assert cfg.features.templates == []
    assert cfg.optimizer == composed().optimizer
    # The same choice is none of its own.
    assert taken(tmp_path, "decoder=hiero")[1].decoder.k == 3
    _, cfg = taken(tmp_path, needless=["decoder", "init"])
    assert (cfg.decoder, cfg.init) == (composed().decoder, composed().init)


def test_who_may_write_the_model(tmp_path: Path) -> None:
    for number, (overrides, given, may) in enumerate(
        [
            ([], [], True),
            (["seed=3"], [], True),
            (["data=fisher"], [], False),
            (["data.name=mine"], [], False),
            (["model.order=3"], [], False),
            (["model.folder=there"], [], False),
            (["model.folder=there"], ["model.folder=here"], True),
            (["data=fisher"], ["data=fisher"], True),
        ]
    ):
        recorded(tmp_path / str(number), *overrides)
        assert taken(tmp_path / str(number), *given)[0].may_write_model is may


# What is not

REFUSED: dict[str, list[Any]] = {
    # Classes
    "metric._target_": ["os.system", None],
    "metric._args_": [["touch"]],
    "loss._partial_": [True],
    "features.templates": [[{"_target_": "os.system"}], [{"_target_": "os.system"}] * 5],
    "features.templates.0._target_": ["os.system"],
    "tuner.solver": [{"_target_": "os.system"}],
    "init.values.x": [{"_target_": "os.system"}],
    "callbacks": [[{"_target_": "os.system"}]],
    # Interpolations
    "data.name": ["${oc.env:HOME}", "a" * 20_000, "a\tb", "a\x1b[2Jb"],
    "loss.reduction": ['${oc.decode:"{_tar${x}get_: os.system}"}', "\\${x}"],
    "data.dev": [["${oc.env:HOME}", "b"], ["pipe", "pipe"], [["a"]]],
    # What is no file
    "data.folders": ["pipe"],
    "model.folder": ["/dev/null"],
    "metric.path": ["/dev/zero"],
}


@pytest.mark.parametrize("option", REFUSED)
def test_nothing_else_is_taken(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for number, value in enumerate(REFUSED[option]):
        folder = tmp_path / str(number)
        recorded(folder, "seed=2")
        change(folder, {option: value})
        with pytest.raises(InputError, match="config.yaml: the run has ") as caught:
            taken(folder)
        assert ".".join(option.split(".")[:2]) in str(caught.value)
        assert "give this override again" in str(caught.value)
        group = option.partition(".")[0]
        assert taken(folder, needless=[group])[1][group] == composed()[group]


CHOICES = ["../x", "/tmp/x", "dense/../../x", "~/x", "x.yaml", "..", "", "a,b", "${x}", True, ["x"]]


@pytest.mark.parametrize("choice", CHOICES)
def test_choices_are_bare_names(tmp_path: Path, choice: Any) -> None:
    recorded(tmp_path)
    change(tmp_path, {}, {"features": choice})
    with pytest.raises(InputError, match="hydra.yaml: names no choices; the run folder is damaged"):
        take_up(tmp_path, [])


def test_what_no_run_has_is_not_looked_at(tmp_path: Path) -> None:
    expected = recorded(tmp_path)
    other = {"output": "precious", "hydra": {"run": {"dir": "there"}}, "nonsense": 1}
    change(
        tmp_path, {**other, "overwrite": True, "engine": {"_target_": "os.system"}}, {"x": "../x"}
    )
    assert taken(tmp_path)[1] == expected


def test_classes_of_others_get_no_path_out_of_place(tmp_path: Path) -> None:
    mine = ["loss._target_=mine.Loss", "+loss.file=words", "+loss.log=/precious"]
    recorded(tmp_path, *mine)
    with pytest.raises(InputError, match=r"the run has loss._target_=mine.Loss loss"):
        taken(tmp_path)
    with pytest.raises(InputError, match=r"the run has loss.log=/precious, and"):
        taken(tmp_path, mine[0])
    _, cfg = taken(tmp_path, mine[0], mine[2])
    assert (cfg.loss._target_, cfg.loss.file, cfg.loss.log) == ("mine.Loss", "words", "/precious")


def attempts(stranger: Path) -> dict[str, tuple[str, ...]]:
    return {
        "translate": (f"weights={stranger / 'weights.txt.gz'}", f"input={EXAMPLE / 'dev.de'}"),
        "train": (f"resume={stranger}",),
    }


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def stranger(tmp_path: Path, run: Run) -> Path:
    """The folder of a run that somebody else has made; the user's own files lie beside it."""
    shutil.copytree(run.folder, tmp_path / "stranger")
    (tmp_path / "stranger" / "checkpoint.pt").write_bytes(b"x")
    (tmp_path / "precious").write_text(PRECIOUS)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "stranger"


@pytest.mark.parametrize("command", ["translate", "train"])
def test_nothing_of_a_stranger_runs(stranger: Path, run: Run, command: str) -> None:
    place, marker = stranger.parent, stranger.parent / "marker"
    part = {"_target_": "shutil.copyfile", "src": str(place / "precious"), "dst": str(marker)}
    change(stranger, {"features.templates": [part]})
    if command == "train":
        (stranger / "weights.txt.gz").unlink()
    before = content(place)
    outcome = run_command(command, *attempts(stranger)[command], folder=run.place)
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert f"{stranger}/config.yaml: the run has features.templates=" in outcome.err
    assert "give this override again" in outcome.err
    assert content(place) == before


def test_what_is_needless_of_a_stranger_is_not_run(stranger: Path, run: Run) -> None:
    place, marker = stranger.parent, stranger.parent / "marker"
    part = {"_target_": "shutil.copyfile", "src": str(place / "precious"), "dst": str(marker)}
    change(stranger, {"loss": part, "callbacks": [part], "metric": part})
    arguments = attempts(stranger)["translate"]
    translated = run_command("translate", *arguments, folder=run.place).check().out
    assert translated == (run.folder / "dev.translations.txt").read_text()
    outcome = run_command("translate", *arguments, "mbr=true", folder=run.place)
    assert outcome.code == 1
    assert "the run has metric." in outcome.err
    assert "give these overrides again" in outcome.err
    assert not marker.exists()


DAMAGED = [
    *("{", "- [x]", "3", "\x00", "!!python/name:os.system", "", "\xff", "[" * 100_000),
    "!!python/object/apply:os.system [touch marker]",
    "- &a x\n" + "- *a\n" * 300_000,
]
RECORDS = ["config.yaml", ".hydra/overrides.yaml", ".hydra/hydra.yaml"]


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record(tmp_path: Path, name: str) -> None:
    for text in DAMAGED:
        recorded(tmp_path)
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=f"{name}: is no .*; the run folder is damaged"):
            take_up(tmp_path, [])
    for kind in ("pipe", "folder", "device", "nothing"):
        path = tmp_path / kind / name
        recorded(tmp_path / kind)
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
        with pytest.raises(InputError, match=f"{name}: is no .*; the run folder is damaged"):
            take_up(tmp_path / kind, [])


@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "config.yaml", ".hydra/config.yaml", ".hydra/hydra.yaml", "weights.txt"],
)
def test_a_link_in_a_folder_that_is_resumed(stranger: Path, name: str) -> None:
    path = stranger / name
    path.unlink(missing_ok=True)
    path.symlink_to(stranger.parent / "precious")
    refused(stranger, path)


@pytest.mark.parametrize("name", [".hydra", "tensorboard", "lists"])
def test_a_folder_that_leads_elsewhere(stranger: Path, name: str) -> None:
    elsewhere = stranger.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.yaml").write_text(PRECIOUS)
    shutil.rmtree(stranger / name, ignore_errors=True)
    (stranger / name).symlink_to(elsewhere)
    refused(stranger, stranger / name)


def test_a_pipe_in_a_folder_that_is_resumed(stranger: Path) -> None:
    (stranger / "metrics.jsonl").unlink()
    os.mkfifo(stranger / "metrics.jsonl")
    refused(stranger, stranger / "metrics.jsonl")


OWN_NAMES = ["weights.txt.gz", "train.log", "lists", ".hydra", "test.translations.txt"]


@pytest.mark.parametrize("name", OWN_NAMES)
def test_a_link_in_a_folder_that_is_written_over(stranger: Path, name: str) -> None:
    elsewhere, path = stranger.parent / "elsewhere", stranger / name
    elsewhere.mkdir()
    (elsewhere / "iteration-0001").write_text(PRECIOUS)
    remove(path)
    path.symlink_to(elsewhere if "." not in name.lstrip(".") else stranger.parent / "precious")
    # Links of the user's own are nobody's business.
    (stranger / "mine").symlink_to(elsewhere)
    refused(stranger, path, f"hydra.run.dir={stranger}", "overwrite=true")


@pytest.mark.parametrize("name", ["multirun.yaml", "0", "report.html"])
def test_a_link_in_the_folder_of_a_sweep(stranger: Path, name: str) -> None:
    sweep, elsewhere = stranger.parent / "sweep", stranger.parent / "elsewhere"
    sweep.mkdir()
    elsewhere.mkdir()
    (sweep / name).symlink_to(elsewhere if name == "0" else stranger.parent / "precious")
    refused(stranger, sweep / name, "-m", f"hydra.sweep.dir={sweep}", "seed=1,2", "tuner.epochs=1")


def refused(stranger: Path, path: Path, *options: str) -> None:
    """Check that nothing is written to a folder, because of one path; by default, it is resumed."""
    if not options:
        (stranger / "weights.txt.gz").unlink()
    before = content(stranger.parent)
    outcome = run_command("train", *options or [f"resume={stranger}"], folder=stranger.parent)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {path}: is no plain file or folder")
    assert content(stranger.parent) == before


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[1, 2]",
        "3",
        "null",
        '{"step": 0, "bleu/dev": "40"}',
        '{"step": 0, "bleu/dev": NaN}',
        '{"step": 0, "bleu/dev": [[1]]}',
        '{"step": 0, "bleu/dev": 1' + "0" * 400 + "}",
        "[" * 100_000,
        '{"step": 0, "bleu/dev": 40}',
    ],
)
def test_measures_of_another_kind(place: Path, run: Run, tmp_path: Path, line: str) -> None:
    """What a folder says that was measured is shown at the end: it must be numbers."""
    if not (place / "measured").exists():
        train_until_saved(place, *MODEL, *SMALL, "hydra.run.dir=measured")
    shutil.copytree(place / "measured", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text(f"{line}\n")
    outcome = run_command("train", f"resume={tmp_path / 'run'}", "threads=1", folder=place)
    assert outcome.code == 1
    assert "metrics.jsonl" in outcome.err
    assert "start the run anew" in outcome.err
    assert not (tmp_path / "run" / "weights.txt.gz").exists()


# Models


def test_no_model_is_built_where_a_folder_says(stranger: Path, run: Run) -> None:
    """Nor is one replaced: settings that differ would build it anew."""
    models = run.place / "outputs" / "models"
    before = content(models)
    there, whole = run.folder / "config.yaml", stranger / "config.yaml"
    for values, reason in (
        ({"model.folder": str(stranger.parent / "new")}, "a model is never built where"),
        ({"model.order": 2}, "it was built with "),
    ):
        whole.write_bytes(there.read_bytes())
        change(stranger, values)
        (stranger / "weights.txt.gz").write_bytes(run.weights.read_bytes())
        for command, arguments in attempts(stranger).items():
            outcome = run_command(command, *arguments, folder=run.place)
            assert outcome.code == 1
            assert reason in outcome.err.splitlines()[-1]
            # Now it can be resumed.
            (stranger / "weights.txt.gz").unlink(missing_ok=True)
    assert content(models) == before
    assert not (stranger.parent / "new").exists()


@pytest.mark.parametrize("name", ["model.json", "grammar", "lm.arpa.gz", "lm.arpa.gz.cache"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
def test_a_model_folder_with_what_is_no_file(
    stranger: Path, run: Run, name: str, kind: str
) -> None:
    """Nothing waits for a pipe, or reads a device."""
    model = stranger.parent / "model"
    shutil.copytree(run.place / "outputs" / "models" / "example", model)
    path = model / name
    if path.is_dir():
        path = next(path.iterdir())
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    change(stranger, {"model.folder": str(model)})
    command = attempts(stranger)["translate"]
    outcome = run_command("translate", *command, folder=stranger.parent)
    if name.endswith(".cache"):
        assert outcome.check().out == (run.folder / "dev.translations.txt").read_text()
    else:
        assert outcome.code == 1
        assert outcome.err.startswith("error: ")
    assert not path.is_file()


def test_nothing_is_written_beside_a_model_that_a_folder_names(stranger: Path, run: Run) -> None:
    model = stranger.parent / "model"
    shutil.copytree(run.place / "outputs" / "models" / "example", model)
    write_grammar(stranger.parent / "rules.gz", load_grammar(model / "grammar"))
    caches = list(model.rglob("*.cache"))
    assert caches
    for path in caches:
        path.unlink()
    change(stranger, {"model.folder": str(model)})
    before = content(stranger.parent)
    outcome = run_command("translate", *attempts(stranger)["translate"], folder=stranger.parent)
    assert outcome.check().out == (run.folder / "dev.translations.txt").read_text()
    assert content(stranger.parent) == before
    files = ["model=files", f"model.grammar={stranger.parent / 'rules.gz'}"]
    files.append(f"model.language_model={model / 'lm.arpa.gz'}")
    other = OmegaConf.to_container(composed(*files).model)
    change(stranger, {"model": other}, {"model": "files"})
    before = content(stranger.parent)
    outcome = run_command("translate", *attempts(stranger)["translate"], folder=stranger.parent)
    assert "belongs to the grammar " in outcome.err
    assert content(stranger.parent) == before


def test_a_model_is_built_where_the_user_says(run: Run, tmp_path: Path) -> None:
    there = tmp_path / "there"
    arguments = [f"weights={run.weights}", f"input={EXAMPLE / 'dev.de'}", f"model.folder={there}"]
    outcome = run_command("translate", *arguments, folder=run.place).check()
    assert outcome.out == (run.folder / "dev.translations.txt").read_text()
    assert (there / "model.json").is_file()


def test_translating_replaces_no_model(run: Run, tmp_path: Path) -> None:
    there = tmp_path / "there"
    folder = f"model.folder={there}"
    built = ["model.order=2", "model.folds=0", folder]
    run_command("build_model", *built, folder=tmp_path).check()
    before = content(there)
    arguments = [f"weights={run.weights}", f"input={EXAMPLE / 'dev.de'}", folder]
    outcome = run_command("translate", *arguments, folder=run.place)
    assert outcome.code == 1
    assert f"{there}: it was built with aligner=" in outcome.err
    assert "translating replaces no model" in outcome.err
    assert content(there) == before


# The folder in which a command runs


def test_modules_in_the_current_folder_are_not_imported(
    stranger: Path, run: Run, repository: Path
) -> None:
    """Whoever enters the folder of a stranger to translate runs nothing of it."""
    marker = stranger.parent / "marker"
    code = f"open({str(marker)!r}, 'w').close()\n"
    (stranger / "hydra_plugins").mkdir()
    for name in ("hydra_plugins/evil", "sacremoses", "colorama", "evil", "sitecustomize", "tqdm"):
        (stranger / f"{name}.py").write_text(code)
    model = run.place / "outputs" / "models" / "example"
    result = translated(repository, stranger, f"model.folder={model}")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (run.folder / "dev.translations.txt").read_text()
    assert not marker.exists()
    # A class that the user names comes from there.
    template = "features.templates=[{_target_:evil.Template}]"
    assert translated(repository, stranger, f"model.folder={model}", template).returncode == 1
    assert marker.exists()


def translated(repository: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["weights=weights.txt.gz", f"input={EXAMPLE / 'dev.de'}", *options]
    return subprocess.run(
        [sys.executable, repository / "scripts" / "translate.py", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# Runs of the user's own


def test_a_run_with_quoted_values_and_lists(run: Run, place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with=signs"
    folder.mkdir()
    for name in ("dev.de", "dev.en.0", "dev.en.1"):
        shutil.copy(EXAMPLE / name, folder)
    options = [
        f"data.dev=['{folder}/dev.de','{folder}/dev.en.0','{folder}/dev.en.1']",
        "optimizer=fobos",
        "optimizer.schedule=inv_sqrt",
        "regularizer=elastic_net",
        "init.values.Glue=-0.25",
        "loss=hinge",
        "loss.reduction=mean",
    ]
    own = train(place, "quoted run", *options)
    recorded = yaml.safe_load((own.folder / ".hydra" / "overrides.yaml").read_text())
    assert set(options) <= set(recorded)
    arguments = [f"weights='{own.weights}'", f"input={EXAMPLE / 'test.de'}"]
    outcome = run_command("translate", *arguments, folder=place).check()
    assert outcome.out == (own.folder / "test.translations.txt").read_text()


def test_a_run_folder_of_any_name_is_resumed(run: Run, place: Path) -> None:
    name = "it's {seed}, a=b"
    train_until_saved(place, *MODEL, *SMALL, f"hydra.run.dir={quoted(name)}")
    assert not (place / name / "weights.txt.gz").exists()
    outcome = run_command("train", f"resume={quoted(name)}", "threads=1", folder=place).check()
    assert Run(place, name, outcome).bytes() == run.bytes()


def test_a_folder_whose_name_is_an_interpolation(tmp_path: Path) -> None:
    for command, option in (("train", "resume='${oc.env:HOME}'"), ("translate", "weights=${x}/w")):
        outcome = run_command(command, option, folder=tmp_path)
        assert outcome.code == 1
        assert outcome.err.startswith(f"error: {option}: ${{ would be replaced by something else")


def test_several_weights_at_once(tmp_path: Path) -> None:
    outcome = run_command("translate", "-m", "weights=a,b", "input=c", folder=tmp_path)
    assert (outcome.code, outcome.err) == (1, "error: weights=a,b: give one weights at a time\n")


def test_weights_whose_name_is_a_number(tmp_path: Path) -> None:
    outcome = run_command("translate", "weights=5", "input=c", folder=tmp_path)
    assert (outcome.code, outcome.err) == (
        1,
        "error: weights must be text, not 5\n",
    )


def test_a_run_that_was_killed_while_it_recorded_itself_can_begin_anew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*MODEL, *SMALL, "tuner.epochs=1", "hydra.run.dir=killed", "data.test=null"]
    options.append(f"model.folder={run.place / 'outputs' / 'models' / 'example'}")
    write, written = record.atomic_writer, []

    def dies(path: Path, **more: Any) -> Any:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        return write(path, **more)

    for after in (1, 2, 3):
        written.clear()
        with monkeypatch.context() as patched:
            patched.setattr(record, "atomic_writer", dies)
            assert run_command("train", *options, folder=tmp_path).code == 130
        assert len(written) == after
    run_command("train", *options, folder=tmp_path).check()
