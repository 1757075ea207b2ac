"""Run folders of strangers: nothing of them runs, and nothing is written where they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import MODEL, SMALL, Run, run_command, train, train_until_saved

from torchtune_smt.cli import run_folder
from torchtune_smt.cli.command_line import quoted, split_arguments
from torchtune_smt.cli.run_folder import NEEDLESS, says_where, take_up
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove
from torchtune_smt.core.resources import config_folder, example_folder
from torchtune_smt.grammar import load_grammar, write_grammar

EXAMPLE = example_folder()
PRECIOUS = "what the user has written\n"


def record(folder: Path, *overrides: str) -> Path:
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    return folder


# What is taken


def leaves(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if key not in ("_target_", "defaults", "values", "templates", "hydra"):
            if isinstance(value, dict):
                yield from leaves(value, f"{name}.{key}" if name else key)
            else:
                yield f"{name}.{key}" if name else key, value


def own_settings() -> Iterator[str]:
    """Every choice, and every option as it stands in the configurations."""
    for path in sorted(config_folder().glob("*/*.yaml")):
        group = path.parent.name
        yield f"{group}={path.stem}"
        where = "" if group == "experiment" else group
        for name, value in leaves(yaml.safe_load(path.read_text()), where):
            if not str(value).startswith("outputs/models/${data.name}"):
                text = "null" if value is None else str(value).replace("True", "true")
                yield f"{name}={text.replace('False', 'false').replace(' ', '')}"


def documented() -> Iterator[str]:
    """The overrides of every command of the documentation that tunes."""
    root = config_folder().parent
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = page.read_text("utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ +(?:python train\.py|torchtune-smt train) (.*)$", text, re.M):
            if " -m " not in f" {line}":
                words = shlex.split(line, comments=True)
                yield from split_arguments(words).overrides


# Classes of the user's own, and what says where this very run lies.
GIVEN_AGAIN = re.compile(r".*_target_|\+loss\.width=|\+tuner\.size=|hydra\.|resume=|.*\.\.\.")

PLAIN = [
    "data.name=mine",
    "data.dev=[dev.de,'../a folder/dev.en','/data/b,c/dev.en']",
    "data.folders=[/data/de-en,../shared/data]",
    "data.test=null",
    "model.folder=/models/mine",
    "model.discount_fallback=null",
    "init.file=../outputs/2026-01-01/weights.txt.gz",
    "init.values.LanguageModel=-0.5",
    "+init.values.PhraseModel_0=0.3",
    "init.values.Glue=1e-5",
    "decoder.dense=[LM0,TM_0]",
    "decoder.dev=/lists/dev.nbest.gz",
    "metric.path='scores of comet.txt'",
    "optimizer.schedule=inv_sqrt",
    "optimizer.schedule=1/t",
    'optimizer.schedule="constant"',
    "regularizer.strength=1e-5",
    "tuner.solver.sigma=0.1",
    "tuner.patience=null",
    "tuner.shuffle=false",
    "loss=squared_hinge",
    "loss.width=2",
    "metric=word-f1",
    "experiment=null",
    "seed=3",
    "lm=full",
]

# What says where a command computes is its own command line's alone.
ELSEWHERE = [
    "engine=ray",
    "engine.address=127.0.0.1:6379",
    "+engine.address=${oc.env:HOME}",
    "engine.workers=1000",
    "engine._target_=os.system",
    "~engine",
    "++engine={_target_:os.system}",
    "threads=1000",
    "device=cuda",
    "decoder.keep_mb=1e6",
    "++decoder.keep_mb=1e6",
    "parallel.workers=100000",
]


@pytest.mark.parametrize("needless", [(), NEEDLESS])
def test_no_record_says_where_to_compute(tmp_path: Path, needless: frozenset[str]) -> None:
    folder = record(tmp_path, "seed=2", *ELSEWHERE, "lm=full")
    settings = take_up(folder, ["engine.workers=2"], needless=needless)
    assert settings.recorded == ["seed=2", "lm=full"]
    assert settings.elsewhere == [o for o in ELSEWHERE if o != "engine.workers=1000"]
    assert settings.given == ["engine.workers=2"]


@pytest.mark.parametrize(
    "override", sorted(o for o in {*PLAIN, *own_settings()} if not says_where(o))
)
def test_plain_settings_are_taken(tmp_path: Path, override: str) -> None:
    settings = take_up(record(tmp_path, override), [])
    assert settings.recorded == [override]
    assert settings.has_run
    assert settings.names_model


def test_settings_of_the_documentation_are_taken(tmp_path: Path) -> None:
    found = [override for override in documented() if not GIVEN_AGAIN.match(override)]
    found = [override for override in found if not says_where(override)]
    assert len(found) > 30
    assert take_up(record(tmp_path, *found), []).recorded == found


def test_what_is_given_replaces_what_was_recorded(tmp_path: Path) -> None:
    assert take_up(tmp_path, ["seed=1"]).recorded == ()
    assert not take_up(tmp_path, ["seed=1"]).has_run
    assert take_up(tmp_path, ["data=fisher"]).names_model
    assert not take_up(tmp_path, ["data.lowercase=true", "features=dense"]).names_model
    single = ["resume=before", "overwrite=true"]
    record(tmp_path, "decoder.k=3", "features=dense", "+init.values.x=1", *single)
    assert take_up(tmp_path, []).recorded == ["decoder.k=3", "features=dense", "+init.values.x=1"]
    given = ["decoder.k=4", "init.values.x=2"]
    assert take_up(tmp_path, given).recorded == ["features=dense"]
    record(tmp_path, "metric._target_=os.system", "seed=2")
    assert take_up(tmp_path, ["metric._target_=mine.Metric"]).recorded == ["seed=2"]


def test_who_may_write_the_model(tmp_path: Path) -> None:
    for recorded, given, may in (
        ([], [], True),
        (["seed=3"], [], True),
        (["data=fisher"], [], False),
        (["data.name=mine"], [], False),
        (["model.order=3"], [], False),
        (["model.folder=there"], [], False),
        (["model.folder=there"], ["model.folder=here"], True),
        (["data=fisher"], ["data=fisher"], True),
    ):
        assert take_up(record(tmp_path, *recorded), given).may_write_model is may


# What is not


REFUSED = [
    # Files of configurations that are not of the user
    "features=../../../x/c/x",
    "features=/tmp/x",
    "features=dense/../../x",
    "features='../x'",
    "features=~/x",
    "features=[dense,../x]",
    "features=x.yaml",
    "features=true",
    "+features=../x",
    "experiment=../x",
    "tuner=..",
    "loss@metric=hinge",
    "+loss@hydra.job=hinge",
    "regularizer@_global_=../x",
    "~regularizer",
    "~data.test",
    # Interpolations
    "features=${oc.env:HOME}",
    "loss=${oc.create:{_target_:os.system}}",
    'loss=${oc.decode:"{_tar${x}get_: os.system}"}',
    "loss.reduction=${oc.env:HOME}",
    "data.name='${oc.env:HOME}'",
    "data.name=\\${x}",
    "data.dev=['${oc.env:HOME}',b]",
    "model.folder=models/${data.name}",
    "init.values=${oc.create:${data.name}}",
    "init.values.x=${seed}",
    # Classes
    "metric._target_=os.system",
    "+metric._args_=[touch]",
    "+loss._partial_=true",
    "++loss._convert_=all",
    "features.templates=[{_target_:os.system}]",
    "features.templates.0._target_=os.system",
    "loss={_target_:os.system}",
    "init.values={a:1}",
    "init.values._target_=1",
    "init.values.x=os.system",
    "+tuner.solver._target_=os.system",
    "+tuner.solver.more={a:1}",
    "tuner.solver.sigma=[[1]]",
    # Outputs, and what each command has to be told anew
    "output=precious",
    "+output=precious",
    "++output=precious",
    "n_best=3",
    "detokenize=true",
    "hydra.run.dir=there",
    "+hydra.searchpath=[file:///tmp]",
    "hydra.searchpath=[pkg://evil]",
    "hydra/job_logging=../x",
    "hydra.job_logging.handlers.file.filename=precious",
    "+hydra.callbacks.x._target_=os.system",
    "hydra=default",
    # Paths out of place, and of what is no file
    "data.name=../../x",
    "data.name=..",
    "data.name=/x",
    "data.name=~",
    "data.source_language=../../x",
    "optimizer.schedule=/x",
    "data.train=[/dev/zero,/dev/zero]",
    "data.dev=[pipe,pipe]",
    "data.folders=pipe",
    "model.folder=/dev/null",
    "model.language_model=/dev/zero",
    "init.file=pipe",
    "metric.path=/dev/zero",
    "decoder.dev=pipe",
    # What no run has
    "nonsense=1",
    "+evil=1",
    "++seed=2",
    "data/nested=x",
    "defaults=[x]",
    "resume.x=1",
    # Several values
    "seed=1,2",
    "seed=range(1,3)",
    "loss=choice(hinge,ramp)",
    "loss=glob(*)",
    # What is meant to break the reader
    "nonsense",
    "",
    "=",
    "seed",
    "seed=" + "9" * 5000,
    "data.dev=" + "[" * 3000,
    "data.name=" + "a" * 20_000,
    "data.name=a\tb",
    "data.name=a\x1b[2Jb",
]


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


def is_needless(override: str) -> bool:
    """Whether it is about a group that has no part in how a run decodes."""
    name = override.partition("=")[0].lstrip("+~")
    return "@" not in name and name.partition(".")[0] in NEEDLESS


@pytest.mark.parametrize("override", list(filter(is_needless, REFUSED)))
def test_what_is_needless_is_left_out(
    tmp_path: Path, override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    group = override.partition("=")[0].lstrip("+~").partition(".")[0]
    folder = record(tmp_path, "seed=2", f"{group}=hinge", override, "features=dense")
    assert take_up(folder, [], needless=NEEDLESS).recorded == ["seed=2", "features=dense"]
    with pytest.raises(InputError, match="the run was given "):
        take_up(folder, [], needless=NEEDLESS - {group})


@pytest.mark.parametrize(
    ("command", "override"),
    [
        *(("train", override) for override in REFUSED),
        *(("translate", override) for override in REFUSED if not is_needless(override)),
    ],
)
def test_nothing_else_is_taken(stranger: Path, override: str, command: str) -> None:
    record(stranger, "seed=2", override, "features=dense")
    place = stranger.parent
    before = content(place)
    outcome = run_command(command, *attempts(stranger)[command], folder=place)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {stranger}/.hydra/overrides.yaml: the run was given ")
    assert outcome.err.count("\n") == 1
    # Long ones are shortened, what no terminal shows is escaped.
    assert override[:50].partition("\t")[0].partition("\x1b")[0] in outcome.err
    assert "seed=2" not in outcome.err or override == "++seed=2"
    assert "features=dense" not in outcome.err.partition("give this override again")[0] or (
        "features=dense" in override
    )
    assert content(place) == before
    assert outcome.out == ""


def test_what_is_needless_of_a_stranger_is_not_run(stranger: Path, run: Run) -> None:
    place, marker = stranger.parent, stranger.parent / "marker"
    part = f"{{_target_:shutil.copyfile,src:'{place / 'precious'}',dst:'{marker}'}}"
    own = yaml.safe_load((stranger / ".hydra" / "overrides.yaml").read_text())
    record(stranger, *own, f"loss={part}", f"callbacks=[{part}]", f"metric={part}")
    arguments = attempts(stranger)["translate"]
    translated = run_command("translate", *arguments, folder=run.place).check().out
    assert translated == (run.folder / "dev.translations.txt").read_text()
    outcome = run_command("translate", *arguments, "mbr=true", folder=run.place)
    assert outcome.code == 1
    # The middle of a long one is left out.
    begin, end = part[:40], part[-20:]
    assert re.search(
        f"the run was given metric={re.escape(begin)}.*{re.escape(end)}, and ", outcome.err
    )
    assert not marker.exists()


def copier(source: Path, target: Path) -> str:
    """A configuration of a part that is really a command."""
    return yaml.safe_dump({"_target_": "shutil.copyfile", "src": str(source), "dst": str(target)})


@pytest.mark.parametrize("command", ["translate", "train"])
def test_a_class_in_a_file_of_the_folder(stranger: Path, run: Run, command: str) -> None:
    place, marker = stranger.parent, stranger.parent / "marker"
    evil = stranger / "c" / "x.yaml"
    evil.parent.mkdir()
    part = copier(place / "precious", marker)
    evil.write_text("templates:\n- " + part.replace("\n", "\n  ").rstrip() + "\n")
    choice = os.path.relpath(evil.with_suffix(""), config_folder() / "features")
    record(stranger, f"features={choice}")
    outcome = run_command(command, *attempts(stranger)[command], folder=run.place)
    assert outcome.code == 1
    assert f"features={choice}" in outcome.err
    assert not marker.exists()


@pytest.mark.parametrize("command", ["translate", "train"])
def test_a_class_put_together_by_interpolations(stranger: Path, run: Run, command: str) -> None:
    place, marker = stranger.parent, stranger.parent / "marker"
    pieces = [
        "data.name=_tar",
        "data.source_language=get_",
        f"data.target_language={place / 'precious'}",
        'features.templates=${oc.decode:"[{${data.name}${data.source_language}: '
        f"shutil.copyfile, src: '{place / 'precious'}', dst: '{marker}'}}]\"}}",
    ]
    record(stranger, *pieces)
    outcome = run_command(command, *attempts(stranger)[command], folder=run.place)
    assert outcome.code == 1
    assert "features.templates=" in outcome.err
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "a: b",
        "- [x]",
        "- 3",
        "\x00",
        "!!python/name:os.system",
        "- !!python/object/apply:os.system [touch marker]",
        "[" * 100_000,
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "- &a x\n" + "- *a\n" * 300_000,
        "\xff",
        "",
    ],
)
def test_a_damaged_record(tmp_path: Path, text: str) -> None:
    record(tmp_path)
    (tmp_path / ".hydra" / "overrides.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match="is no list of overrides; the run folder is damaged"):
        take_up(tmp_path, [])


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
def test_a_record_that_is_no_file(tmp_path: Path, kind: str) -> None:
    path = record(tmp_path) / ".hydra" / "overrides.yaml"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(InputError, match="is no list of overrides; the run folder is damaged"):
        take_up(tmp_path, [])


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
    new = f"model.folder={stranger.parent / 'new'}"
    for overrides, reason in (
        ([*MODEL, new], "there is no whole model, and a model is never built where"),
        ([*MODEL, "data.name=new"], "there is no whole model, and a model is never built where"),
        ([*MODEL, "data.name=../../new"], "data.name=../../new"),
        (["model.order=2"], "it was built with "),
    ):
        record(stranger, *overrides)
        (stranger / "weights.txt.gz").write_bytes(run.weights.read_bytes())
        for command, arguments in attempts(stranger).items():
            outcome = run_command(command, *arguments, folder=run.place)
            assert outcome.code == 1
            assert reason in outcome.err
            assert outcome.err.count("\n") == 1
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
    record(stranger, *MODEL, f"model.folder={model}", "decoder.pop_limit=10")
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
    record(stranger, *MODEL, f"model.folder={model}", "decoder.pop_limit=10")
    before = content(stranger.parent)
    outcome = run_command("translate", *attempts(stranger)["translate"], folder=stranger.parent)
    assert outcome.check().out == (run.folder / "dev.translations.txt").read_text()
    assert content(stranger.parent) == before
    files = ["model=files", f"model.grammar={stranger.parent / 'rules.gz'}"]
    record(stranger, *files, f"model.language_model={model / 'lm.arpa.gz'}")
    outcome = run_command("translate", *attempts(stranger)["translate"], folder=stranger.parent)
    assert "belongs to the grammar " in outcome.err
    del before["stranger/.hydra/overrides.yaml"]
    after = content(stranger.parent)
    del after["stranger/.hydra/overrides.yaml"]
    assert after == before


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
    write, written = run_folder.atomic_writer, []

    def dies(path: Path, **more: Any) -> Any:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        return write(path, **more)

    for after in (1, 2, 3):
        written.clear()
        with monkeypatch.context() as patched:
            patched.setattr(run_folder, "atomic_writer", dies)
            assert run_command("train", *options, folder=tmp_path).code == 130
        assert len(written) == after
    run_command("train", *options, folder=tmp_path).check()
