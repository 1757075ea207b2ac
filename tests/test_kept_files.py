"""What commands must leave as it is: earlier runs, the user's files, and what they read."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest
from commands import MODEL, SMALL, content, run_command
from small_lists import ON_LISTS, put

from torchtune_smt.cli.systems import find_systems


def contents(folder):
    # Hydra records what was typed before anything can be looked at.
    return content(folder, ".hydra/*")


@pytest.mark.parametrize(
    "options",
    [
        ["parallel=itermix", "parallel.shards=50"],
        ["parallel=itermix", "parallel.labels=nothere.txt", "parallel.shards=null"],
        ["tuner=mira", "tuner.sparse=scale"],
    ],
    ids=lambda options: options[-1],
)
def test_a_run_that_cannot_begin_leaves_the_one_before(run, options):
    place = run.place
    small = [*MODEL, "tuner.sentences=10", "features=dense", "data.test=null", "threads=1"]
    if not (place / "kept_run").exists():
        lists = ["tuner=mira", "tuner.iterations=1", "tuner.keep_lists=true", "decoder.k=5"]
        run_command("train", *small, *lists, "hydra.run.dir=kept_run", folder=place).check()
    before = contents(place / "kept_run")
    assert any(name.startswith("lists/") for name in before)
    again = [*small, *options, "hydra.run.dir=kept_run", "overwrite=true"]
    run_command("train", *again, folder=place).refused()
    assert contents(place / "kept_run") == before


@pytest.fixture(scope="module")
def two(run):
    """A folder with two runs, and files beside them."""
    folder = run.place / "two_runs"
    for name in ("a", "b"):
        shutil.copytree(run.folder, folder / name)
    shutil.copy(run.folder / "test.translations.txt", folder / "a.txt")
    lines = (run.folder / "test.translations.txt").read_text("utf-8").splitlines()
    put(folder, {"ref.txt": reversed(lines)})
    return folder


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["analyse", "reordering", "a.txt", "b", "references=[ref.txt]"], "ref.txt"),
        (["analyse", "progress", "a", "b"], "a/metrics.jsonl"),
        (["compare", "a", "b"], "b/weights.txt.gz"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_what_is_read_is_not_written(two, arguments, file):
    before = contents(two)
    said = f"error: {file}: output is a file that is read"
    run_command(*arguments, f"output={file}", folder=two).refused(said)
    assert contents(two) == before


def test_runs_behind_links_are_found_once(two):
    links = two / "links"
    links.mkdir()
    for name in ("a", "b"):
        (links / name).symlink_to(two / name)
    # Into itself.
    (links / "loop").symlink_to(links)
    found = find_systems(str(links), group_seeds=True)
    paths = [output.path for outputs in found.values() for output in outputs]
    assert paths == [links / "a", links / "b"]


def test_a_sweep_says_how_to_compare_its_runs(place):
    (place / "my settings").mkdir()
    options = [*MODEL, *SMALL, "features=dense", "tuner.epochs=1", "seed=1,2", "data.test=null"]
    arguments = ["-m", *options, "hydra.sweep.dir='s w'", "--config-dir=my settings"]
    out = run_command("train", *arguments, folder=place).check().out
    assert "tensorboard --logdir 's w/0'\n" in out
    (command,) = (shlex.split(said) for said in re.findall(r"\((.*) tells more\)", out))
    assert command[0].endswith("torchtune-smt") and command[1] == "compare"
    # With the set that is there, and with choices that only this folder may have.
    assert "--config-dir=my settings" in command
    assert "| s w | 2 |" in run_command("compare", *command[2:], folder=place).check().out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("translate", ["-m", "weights=w.gz", "input=in.txt", "n_best=1,2", "output=m"]),
        ("compare", ["hydra.mode=MULTIRUN", "first", "baseline=a,b"]),
    ],
)
def test_commands_without_sweeps(tmp_path, name, arguments):
    said = f"error: {name} has no sweeps; leave -m out"
    run_command(name, *arguments, folder=tmp_path).refused(said)
    assert not list(tmp_path.iterdir())


def test_a_last_line_that_is_cut_is_left_out(two):
    path = two / "a" / "metrics.jsonl"
    whole = run_command("analyse", "progress", "a", folder=two).check().out
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(lines) + lines[-1][: len(lines[-1]) // 2], "utf-8")
    assert run_command("analyse", "progress", "a", folder=two).check().out == whole
    path.write_text("".join([lines[0][:5] + "\n", *lines]), "utf-8")
    said = "metrics.jsonl:1: is no line of a metrics file"
    run_command("analyse", "progress", "a", folder=two).refused(said)
    path.write_text("".join(lines), "utf-8")


def test_what_a_stranger_recorded_is_shown_as_text(two):
    folder = two / "strange"
    shutil.copytree(two / "a", folder)
    overrides = folder / ".hydra" / "overrides.yaml"
    overrides.write_text('- "seed=1"\n- "features=\\e[31mred\\nline"\n', "utf-8")
    outcome = run_command("compare", "strange", "b", folder=two)
    assert "\x1b" not in outcome.out + outcome.err
    assert "| features=\\x1b[31mred\\nline | " in outcome.out


# What the run in a folder that is emptied is to read


LISTS = "0 ||| a ||| LM=-2 TM=-1 ||| -3\n0 ||| a b ||| LM=-1 TM=-2 ||| -3\n"
OF_LISTS = [*ON_LISTS, "tuner.epochs=1", "hydra.run.dir=run", "optimizer.lr=1e-3"]


@pytest.fixture
def tuned(tmp_path):
    """A place with a run on lists in the folder `run`."""
    put(tmp_path, {"list": LISTS, "dev.de": "x\n", "dev.en": "a b\n", "start": "LM 1\nTM 0.5\n"})
    given = ["decoder.dev=list", "data.dev=[dev.de,dev.en]", "init=file", "init.file=start"]
    run_command("train", *OF_LISTS, *given, folder=tmp_path).check()
    put(tmp_path / "run", {"lists/iteration-0001/list": LISTS, "lists/list": LISTS})
    shutil.copy(tmp_path / "run" / "weights.txt.gz", tmp_path / "run" / "start.gz")
    (tmp_path / "link.gz").symlink_to("run/weights.txt.gz")
    ini = "[weight]\nLM0= 1\n[weight-file]\nsparse\n"
    put(tmp_path / "run", {"moses.ini": ini, "moses.sparse.txt": "TM 1\n"})
    of_sparse = f"[weight-file]\n{tmp_path}/run/moses.sparse.txt\n"
    put(tmp_path, {"start.ini": f"[weight]\nLM= 1\n{of_sparse}"})
    return tmp_path


# Of the run of lists in the folder `run`, what is to be read; None: it stays there, and is read.
READ = {
    "init.file=run/weights.txt.gz": ("weights.txt.gz", "init.file"),
    "init.file=link.gz": ("weights.txt.gz", "init.file"),
    "init.file=start.ini": ("moses.sparse.txt", "init.file"),
    "data.dev=[run/dev.translations.txt,dev.en]": ("dev.translations.txt", "data.dev"),
    "decoder.dev=[run/lists/iteration-0001/list]": ("lists/iteration-0001/list", "decoder.dev"),
    "init.file=run/start.gz": None,
    "decoder.dev=run/lists/list": None,
}


@pytest.mark.parametrize("option", READ)
def test_a_run_that_reads_what_it_would_remove(tuned, option):
    before = contents(tuned)
    given = {"decoder.dev": "list", "data.dev": "[dev.de,dev.en]"}
    given |= {"init": "file"} if option.startswith("init") else {}
    given |= dict([option.split("=")])
    own = [f"{name}={value}" for name, value in given.items()]
    outcome = run_command("train", *OF_LISTS, *own, "overwrite=true", folder=tuned)
    if READ[option] is None:
        path = option.partition("=")[2]
        assert outcome.code == 0 and contents(tuned)[path] == before[path]
        assert not (tuned / "run" / "lists" / "iteration-0001").exists()
        return
    name, named = READ[option]
    outcome.refused(f"error: {tuned}/run/{name}: is a file that is read ({named}), ")
    assert contents(tuned) == before
