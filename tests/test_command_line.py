"""Flags of the command line, wherever they stand, for every command."""

import itertools
import shlex

import pytest
from commands import MODEL, SMALL, run_command, train_until_saved
from hypothesis import assume, given
from hypothesis import strategies as st
from small_lists import put

from torchtune_smt.cli.command_line import split_arguments, typed, value_of
from torchtune_smt.core.resources import example_folder

EXAMPLE = example_folder()

# What each flag is taken for, and how else it can be written.
FLAGS = {
    "--config-dir=a b": [["--config-dir", "a b"], ["--config-dir=a b"], ["-cd", "a b"]],
    "--config-name=x=y": [["--config-name", "x=y"], ["-cn=x=y"]],
    "--cfg=job": [["--cfg", "job"], ["-c", "job"], ["-cjob"]],
    "--package=p": [["--package=p"], ["-p", "p"]],
    "--multirun": [["--multirun"], ["-m"]],
    "--resolve": [["--resolve"], ["--resol"]],
    "--help": [["--help"], ["-h"]],
    "--info=plugins": [["--info=plugins"], ["-i", "plugins"]],
}
overrides = st.lists(st.sampled_from(["a=1", "+a.b=[x,y]", "~c", "++d='--e'", "f=", "g=-1"]))


@given(overrides=overrides, flags=st.sets(st.sampled_from(list(FLAGS))), data=st.data())
def test_flags_and_overrides_are_told_apart(overrides, flags, data):
    pieces = [[override] for override in overrides]
    for flag in data.draw(st.permutations(sorted(flags))):
        at = data.draw(st.integers(0, len(pieces)))
        pieces.insert(at, data.draw(st.sampled_from(FLAGS[flag])))
    found = split_arguments(list(itertools.chain(*pieces)))
    assert found.overrides == overrides
    assert set(found.flags) == flags
    assert split_arguments([*found.overrides, *found.flags]) == found


LOSS = "_target_: torchtune_smt.losses.Hinge\nreduction: mean\n"
OWN = "loss=mine"


@pytest.fixture
def own(place):
    """A folder of configurations of the user's own."""
    put(place / "settings", {"loss/mine.yaml": LOSS})
    return place / "settings"


def test_the_folder_of_configurations_of_translate_and_resume(run, place, own):
    flag, name = ["--config-dir", "settings"], "own_folder"
    train_until_saved(place, *MODEL, *SMALL, OWN, f"hydra.run.dir={name}", *flag)
    run_command("train", f"resume={name}", folder=place).refused(
        "there is no loss=mine; choose of "
    )
    arguments = ["threads=1", f"resume={name}", "tuner.patience=3"]
    run_command("train", *arguments, *flag, folder=place).check()
    weights = place / name / "weights.txt.gz"
    arguments = [f"weights={weights}", f"input={EXAMPLE / 'test.de'}", "threads=1"]
    expected = (place / name / "test.translations.txt").read_text()
    # It makes no use of the loss.
    for more in ([], flag):
        assert run_command("translate", *arguments, *more, folder=place).check().out == expected


def test_another_configuration(place, run):
    put(place / "more", {"mine.yaml": "defaults:\n- train\n- _self_\nseed: 77\n"})
    arguments = ["-cn", "mine", "features=dense", "--config-dir", "more", "lm=full", "--cfg=job"]
    out = run_command("train", *arguments, folder=place).check().out
    assert "seed: 77" in out and "lm: full" in out


@given(st.text(st.characters(exclude_categories=["C"]), min_size=1))
def test_what_is_said_can_be_typed(text):
    assume("${" not in text)
    (word,) = shlex.split(typed("resume", text))
    assert value_of([word], "resume") == text


def test_what_cannot_be_read_is_named_with_its_cure(tmp_path):
    for command, argument in (("train", "resume=ä"), ("translate", "weights=ä"), ("train", "foo")):
        said = f"error: {argument}: cannot be read as OPTION=VALUE", "as in output=\"'a, b.txt'\""
        run_command(command, argument, folder=tmp_path).refused(*said)
    assert "Only one of" in run_command("train", "--cfg=job", "-m", folder=tmp_path).err
    assert not list(tmp_path.iterdir())
