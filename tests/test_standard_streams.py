"""Standard streams that are closed, full, or of another encoding; arguments of any size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import short_example
from commands import MODEL, SMALL, run_command
from small_lists import put


def command(repository, folder, text, given=b"", **environment):
    """Run a line of a shell in which `$SHORT` is the command, on the short example."""
    return subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=folder,
        env={
            **os.environ,
            "SHORT": f"{sys.executable} {short_example.__file__}",
            **environment,
        },
        input=given,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_standard_output(repository, tmp_path):
    found = command(
        repository, tmp_path, f"{sys.executable} {repository}/train.py --help >/dev/full"
    )
    assert found.returncode == 1
    error = b"error: the standard output: No space left on device; make room on the disk\n"
    assert found.stderr == error


def test_streams_that_are_closed(repository, run):
    # The weights are those of the run, whether anybody reads or not.
    options = " ".join([*MODEL, *SMALL, "data.test=null", "threads=1", "tuner.epochs=1"])
    found = command(repository, run.place, f"$SHORT train {options} hydra.run.dir=closed >&-")
    assert (found.returncode, found.stderr) == (0, b"")
    assert "epoch 1: dev BLEU" in (run.place / "closed" / "train.log").read_text("utf-8")
    line = f"$SHORT translate weights={run.weights} input=- <&-"
    found = command(repository, run.place, line)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def test_text_is_utf_8_in_any_locale(repository, tmp_path):
    put(tmp_path, {"weights": "f 1\n"})
    line, given = "$SHORT rerank weights=weights input=/dev/stdin", "0 ||| xgrün 日 ||| f=1 ||| 0\n"
    found = command(repository, tmp_path, line, given.encode(), PYTHONIOENCODING="latin-1")
    assert (found.returncode, found.stdout.decode("utf-8")) == (0, "xgrün 日\n")


def test_a_sweep_that_nobody_reads_ends(repository, run):
    options = " ".join([*MODEL, *SMALL, "data.test=null", "threads=1", "tuner.epochs=1"])
    line = f"$SHORT train -m {options} seed=1,2,3 hydra.sweep.dir=unread 2>errors | head -3"
    command(repository, run.place, line)
    said = (run.place / "errors").read_text("utf-8")
    assert "nobody reads the output any more" in said
    assert "hydra.run.dir" not in said and "Traceback" not in said
    # It does not go on with the others.
    assert not list((run.place / "unread").glob("*/weights.txt.gz"))


def test_arguments_longer_than_names_of_files(run):
    words = ",".join(f"word{number}" for number in range(101))
    run_command("analyse", "spellings", "first", f"words=[{words}]", folder=run.place).check()
    long = "x" * 300
    arguments = ["translate", f"weights={long}", "input=a"]
    run_command(*arguments, folder=run.place).refused("error: ")
