"""Run folders of strangers: nothing of them runs, and nothing is written where they say."""

import os
import shutil
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import yaml
from commands import MODEL, SMALL, Run, content, run_command, train_until_saved
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from torchtune_smt.cli import record
from torchtune_smt.cli.command_line import quoted
from torchtune_smt.cli.record import take_up
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove
from torchtune_smt.core.resources import config_folder, example_folder

EXAMPLE = example_folder()
PRECIOUS = "what the user has written\n"


def change(folder, values, choices=None):
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


def composed(*overrides):
    return deepcopy(_composed(overrides))


@cache
def _composed(overrides):
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train", list(overrides), return_hydra_config=True)


def recorded(folder, *overrides):
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


def taken(folder, *given, needless=()):
    """Take a run up; return what is known of it, and the configuration."""
    settings = take_up(folder, given, needless=needless)
    cfg = composed(*settings.recorded, *given)
    with open_dict(cfg):
        del cfg["hydra"]
    settings.apply(cfg)
    OmegaConf.resolve(cfg)
    return settings, cfg


# What is taken


PLAIN = [
    *("data.name=mine", "data.dev=[dev.de,'../a folder/dev.en','/data/b,c/dev.en']"),
    *("data.folders=[/data/de-en,../shared/data]", "data.test=null", "model.folder=/models/mine"),
    *("model.discount_fallback=null", "init.values.LanguageModel=-0.5", "init.values.Glue=1e-5"),
    *("+init.values.PhraseModel_0=0.3", "~init.values.WordPenalty", "~decoder.max_span"),
    *("optimizer.lr=1e-7", "regularizer.strength=1e-5", "tuner.patience=3", "tuner.shuffle=false"),
    *("seed=3", "lm=full"),
]


def test_settings_are_taken(tmp_path):
    expected = recorded(tmp_path, *PLAIN)
    settings, cfg = taken(tmp_path)
    assert cfg == expected
    assert settings.has_run and settings.names_model and not settings.may_write_model
    assert list(settings.overrides) == PLAIN


def test_every_choice_is_taken(tmp_path):
    choices = {}
    for folder in filter(Path.is_dir, config_folder().iterdir()):
        files = [path for path in sorted(folder.glob("*.yaml")) if "???" not in path.read_text()]
        choices[folder.name] = [path.stem for path in files]
    del choices["engine"], choices["experiment"]
    for number in range(max(map(len, choices.values()))):
        overrides = [f"{group}={names[number % len(names)]}" for group, names in choices.items()]
        expected = recorded(tmp_path / str(number), *overrides)
        assert taken(tmp_path / str(number))[1] == expected, overrides


def test_no_record_says_where_to_compute(tmp_path):
    elsewhere = ["engine=ray", "engine.workers=1000", "threads=1000", "device=cuda"]
    elsewhere += ["decoder.keep_mb=1e6", "+parallel.workers=100000"]
    recorded(tmp_path, "seed=2", *elsewhere, "lm=full")
    settings, cfg = taken(tmp_path, "engine.workers=2")
    assert settings.elsewhere == [o for o in elsewhere if o != "engine.workers=1000"]
    assert (cfg.seed, cfg.lm, cfg.threads, cfg.device) == (2, "full", None, "cpu")
    assert cfg.decoder.keep_mb == 500 and "workers" not in cfg.parallel
    assert cfg.engine == composed("engine.workers=2").engine


def test_what_is_given_replaces_what_was_recorded(tmp_path):
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


def test_who_may_write_the_model(tmp_path):
    for number, (override, given, may) in enumerate(
        [
            *[("seed=3", [], True), ("data=fisher", [], False), ("model.order=3", [], False)],
            *[("model.folder=there", [], False), ("data=fisher", ["data=fisher"], True)],
            ("model.folder=there", ["model.folder=here"], True),
        ]
    ):
        recorded(tmp_path / str(number), override)
        assert taken(tmp_path / str(number), *given)[0].may_write_model is may


# What is not

REFUSED = {
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
    "data.name": ["${oc.env:HOME}", "a\tb", "a\x1b[2Jb"],
    "loss.reduction": ['${oc.decode:"{_tar${x}get_: os.system}"}', "\\${x}"],
    "data.dev": [["${oc.env:HOME}", "b"], ["pipe", "pipe"], [["a"]]],
    # What is no file
    "data.folders": ["pipe"],
    "model.folder": ["/dev/null"],
    "metric.path": ["/dev/zero"],
}


@pytest.mark.parametrize("option", REFUSED)
def test_nothing_else_is_taken(tmp_path, option, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    recorded(tmp_path, "seed=2")
    group = option.partition(".")[0]
    for value in REFUSED[option]:
        change(tmp_path, {option: value})
        with pytest.raises(InputError, match="config.yaml: the run has ") as caught:
            taken(tmp_path)
        assert ".".join(option.split(".")[:2]) in str(caught.value)
        assert "give these overrides again" in str(caught.value)
        assert taken(tmp_path, needless=[group])[1][group] == composed()[group]


def test_choices_are_bare_names(tmp_path):
    recorded(tmp_path)
    for choice in ("../x", "dense/../../x", "~/x", "x.yaml", "", "a,b", "${x}", True, ["x"]):
        change(tmp_path, {}, {"features": choice})
        with pytest.raises(InputError, match="hydra.yaml: names no choices"):
            take_up(tmp_path, [])


def test_what_no_run_has_is_not_looked_at(tmp_path):
    expected = recorded(tmp_path)
    other = {"output": "precious", "hydra": {"run": {"dir": "there"}}, "nonsense": 1}
    change(
        tmp_path, {**other, "overwrite": True, "engine": {"_target_": "os.system"}}, {"x": "../x"}
    )
    assert taken(tmp_path)[1] == expected


def test_classes_of_others_get_no_path_out_of_place(tmp_path):
    mine = ["loss._target_=mine.Loss", "+loss.file=words", "+loss.log=/precious"]
    recorded(tmp_path, *mine)
    with pytest.raises(InputError, match=r"the run has loss._target_=mine.Loss loss"):
        taken(tmp_path)
    with pytest.raises(InputError, match=r"the run has loss.log=/precious, and"):
        taken(tmp_path, mine[0])
    _, cfg = taken(tmp_path, mine[0], mine[2])
    assert (cfg.loss._target_, cfg.loss.file, cfg.loss.log) == ("mine.Loss", "words", "/precious")


def attempts(stranger):
    return {
        "translate": (f"weights={stranger / 'weights.txt.gz'}", f"input={EXAMPLE / 'dev.de'}"),
        "train": (f"resume={stranger}",),
    }


@pytest.fixture
def stranger(tmp_path, run):
    """The folder of a run that somebody else has made; the user's own files lie beside it."""
    shutil.copytree(run.folder, tmp_path / "stranger")
    (tmp_path / "stranger" / "checkpoint.pt").write_bytes(b"x")
    (tmp_path / "precious").write_text(PRECIOUS)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "stranger"


@pytest.mark.parametrize("command", ["translate", "train"])
def test_nothing_of_a_stranger_runs(stranger, run, command):
    """Nor is what the command has no need of looked at."""
    place, marker = stranger.parent, stranger.parent / "marker"
    part = {"_target_": "shutil.copyfile", "src": str(place / "precious"), "dst": str(marker)}
    change(stranger, {"loss": part, "callbacks": [part], "metric": part})
    arguments = attempts(stranger)[command]
    if command == "train":
        (stranger / "weights.txt.gz").unlink()
    else:
        translated = run_command(command, *arguments, folder=run.place).check().out
        assert translated == (run.folder / "dev.translations.txt").read_text()
        arguments = (*arguments, "mbr=true")
    before = content(place)
    run_command(command, *arguments, folder=run.place).refused(
        f"error: {stranger}/config.yaml: the run has ", "again", "metric."
    )
    assert content(place) == before


DAMAGED = [
    *("{", "- [x]", "3", "\x00", "!!python/name:os.system", "", "\xff", "[" * 100_000),
    "!!python/object/apply:os.system [touch marker]",
]
RECORDS = ["config.yaml", ".hydra/overrides.yaml", ".hydra/hydra.yaml"]


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record(tmp_path, name):
    recorded(tmp_path)
    for damage in (*DAMAGED, "pipe", "folder", "device", "nothing"):
        if damage in DAMAGED:
            (tmp_path / name).write_text(damage, encoding="latin-1")
        else:
            planted(tmp_path / name, damage, tmp_path)
        with pytest.raises(InputError, match=f"{name}: is no .*; the run folder is damaged"):
            take_up(tmp_path, [])


def planted(path, kind, place):
    """Put something else in the place of a file or folder."""
    path.parent.mkdir(exist_ok=True)
    remove(path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        names = {"device": "/dev/zero", "link": "precious", "link to a folder": "elsewhere"}
        path.symlink_to(place / names.get(kind, "nowhere"))


LINKS = [
    *(("resume", "link", name) for name in ("metrics.jsonl", ".hydra/config.yaml", "weights.txt")),
    *(("resume", "link to a folder", ".hydra"), ("resume", "pipe", "metrics.jsonl")),
    *(("overwrite", "link", "train.log"), ("overwrite", "link to a folder", "lists")),
    *(("sweep", "link", "report.html"), ("sweep", "link to a folder", "0")),
]


@pytest.mark.parametrize(("command", "kind", "name"), LINKS)
def test_what_is_no_file_of_the_run_s_own(stranger, command, kind, name):
    """Nothing is written to a folder that has it in the place of what a run writes."""
    place = stranger.parent
    (place / "elsewhere").mkdir()
    for file in ("config.yaml", "iteration-0001"):
        (place / "elsewhere" / file).write_text(PRECIOUS)
    options = [f"resume={stranger}"]
    if command == "resume":
        (stranger / "weights.txt.gz").unlink()
    elif command == "overwrite":
        # Links of the user's own are nobody's business.
        (stranger / "mine").symlink_to(place / "elsewhere")
        options = [f"hydra.run.dir={stranger}", "overwrite=true"]
    else:
        options = ["-m", f"hydra.sweep.dir={stranger}", "seed=1,2", "tuner.epochs=1"]
    planted(stranger / name, kind, place)
    before = content(place)
    run_command("train", *options, folder=place).refused(
        f"error: {stranger / name}: is no plain file or folder"
    )
    assert content(place) == before


# Models


def test_no_model_is_built_where_a_folder_says(stranger, run):
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


def test_a_model_is_built_where_the_user_says_and_replaced_nowhere(run, tmp_path):
    there = tmp_path / "there"
    arguments = [f"weights={run.weights}", f"input={EXAMPLE / 'dev.de'}", f"model.folder={there}"]
    outcome = run_command("translate", *arguments, folder=run.place).check()
    assert outcome.out == (run.folder / "dev.translations.txt").read_text()
    before = content(there)
    run_command("translate", *arguments, "model.order=2", folder=run.place).refused(
        f"{there}: it was built with ", "translating replaces no model"
    )
    assert content(there) == before


# The folder in which a command runs


def test_modules_in_the_current_folder_are_not_imported(stranger, run, repository):
    """Whoever enters the folder of a stranger to translate runs nothing of it."""
    marker = stranger.parent / "marker"
    (stranger / "hydra_plugins").mkdir()
    for name in ("hydra_plugins/evil", "sacremoses", "colorama", "evil", "sitecustomize", "tqdm"):
        (stranger / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    model = f"model.folder={run.place / 'outputs' / 'models' / 'example'}"
    command = [sys.executable, repository / "scripts" / "translate.py", "weights=weights.txt.gz"]
    # A class that the user names comes from there.
    for mine in ([], ["features.templates=[{_target_:evil.Template}]"]):
        done = subprocess.run(
            [*command, f"input={EXAMPLE / 'dev.de'}", model, *mine],
            cwd=stranger,
            env=os.environ | {"PYTHONPATH": str(repository)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == len(mine) and marker.exists() == bool(mine), done.stderr
        assert mine or done.stdout == (run.folder / "dev.translations.txt").read_text()


# Runs of the user's own


def test_a_run_folder_of_any_name_is_resumed(run, place):
    name = "it's {seed}, a=b"
    train_until_saved(place, *MODEL, *SMALL, f"hydra.run.dir={quoted(name)}")
    assert not (place / name / "weights.txt.gz").exists()
    outcome = run_command("train", f"resume={quoted(name)}", "threads=1", folder=place).check()
    assert Run(place, name, outcome).bytes() == run.bytes()


def test_a_run_that_was_killed_while_it_recorded_itself_can_begin_anew(run, tmp_path, monkeypatch):
    options = [*MODEL, *SMALL, "tuner.epochs=1", "hydra.run.dir=killed", "data.test=null"]
    options.append(f"model.folder={run.place / 'outputs' / 'models' / 'example'}")
    write, written = record.atomic_writer, []

    def dies(path, **more):
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
