"""What each command shows in a terminal: what a person reads, and nothing that is left over."""

import re
import sys

import pytest
from commands import MODEL, SMALL
from terminal import COLUMNS, in_terminal, screen

from torchtune_smt.core.resources import example_folder
from torchtune_smt.runs.transcript import transcript

# A line of these is copied, and not read; an error is a line.
_COPIED = re.compile(
    r"Now try: |.*error: |.*[(](python|\S*torchtune-smt) |.*tensorboard --logdir |usage: "
    r"|  file      |python scripts/|  features.templates="
)


def check(code, shown, expected=0):
    assert code == expected, shown
    assert "Traceback" not in shown
    assert "Exception ignored" not in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown), repr(shown)
    for line in shown.splitlines():
        assert len(line) <= COLUMNS or _COPIED.match(line), line
    return shown


def test_train(place, run):
    options = [*MODEL, *SMALL, "tuner.epochs=1", "hydra.run.dir=typed"]
    shown = check(*in_terminal("train", *options, folder=place))
    last = shown.splitlines()[-24:]
    assert any("BLEU" in line for line in last)
    assert last[-1].startswith("Now try: echo ") or last[-2].startswith("Now try: echo ")
    assert "it/s" not in shown and "?sent/s" not in shown


def test_ctrl_c(place, run):
    options = [*MODEL, *SMALL, "tuner.epochs=1000", "tuner.patience=null", "hydra.run.dir=stopped"]
    code, shown = in_terminal("train", *options, folder=place, stop_at=b"epoch 2")
    hint = "torchtune-smt train: stopped; go on with resume=stopped"
    # The terminal shows what was typed.
    assert check(code, shown.replace("^C", ""), 130).splitlines()[-1] == hint
    code, shown = in_terminal("train", "resume=stopped", folder=place, stop_at=b"resuming")
    assert check(code, shown.replace("^C", ""), 130).splitlines()[-1] == hint
    arguments = [f"weights={run.weights}", "input=-"]
    code, shown = in_terminal("translate", *arguments, folder=place, stop_at=b"loading")
    last = check(code, shown.replace("^C", ""), 130).splitlines()[-1]
    assert last.startswith("torchtune-smt translate: stopped")


def test_a_line_that_was_begun_is_ended(capsys):
    with pytest.raises(KeyboardInterrupt), transcript():
        sys.stdout.write("half a line")
        raise KeyboardInterrupt
    assert capsys.readouterr().out == "half a line\n"


def test_a_sweep_and_a_comparison(place, run):
    options = [*MODEL, *SMALL, "features=dense", "tuner.epochs=1", "loss=logistic,hinge"]
    shown = check(*in_terminal("train", "-m", *options, "hydra.sweep.dir=typed_s", folder=place))
    assert "A: loss=logistic\nB: loss=hinge\n" in shown
    assert re.search(r"system +BLEU +95% +p\nA +[0-9.]+ ", shown)
    shown = check(*in_terminal("compare", "typed_s/0", "typed_s/1", "samples=20", folder=place))
    assert "---|" not in shown
    scores = ("evaluate", "typed_s/0", "typed_s/1", "samples=20")
    shown = check(*in_terminal(*scores, folder=place))
    assert shown.count("precisions") == 2 and " against loss=logistic: BLEU " in shown
    analysed = ("overlap", "typed_s/0", "typed_s/1")
    assert "|---" not in check(*in_terminal("analyse", *analysed, folder=place))


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "file"])
def test_translate(place, run, typed):
    lines = (example_folder() / "test.de").read_text("utf-8").splitlines()[:2]
    (place / "two.de").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    arguments = [f"weights={run.weights}", "input=-" if typed else "input=two.de"]
    keys = "".join(f"{line}\n" for line in lines).encode() + b"\x04" if typed else b""
    shown = check(*in_terminal("translate", *arguments, folder=place, keys=keys))
    expected = (run.folder / "test.translations.txt").read_text("utf-8").splitlines()[:2]
    assert [line for line in shown.splitlines() if line in expected] == expected
    assert "sent/s" not in shown


def test_the_other_commands(place, run):
    lists = "".join(f"{i % 9} ||| {'a b c d'[:i]} ||| F= {i} {i % 3} ||| 1\n" for i in range(45))
    (place / "nine.nbest").write_text("".join(sorted(lists.splitlines(True))))
    (place / "nine.en").write_text("a b c\n" * 9)
    batch = ("tuner=pro", "tuner.iterations=1", "tuner.sentences=20", "hydra.run.dir=typed_pro")
    check(*in_terminal("plot", "no_such=1", folder=place), 1)
    for command, *arguments in (
        ("build-model", *MODEL),
        ("train", *MODEL, *SMALL[2:], *batch),
        ("tune", "dev=nine.nbest", "references=nine.en", "folds=0", "samples=20"),
        ("plot", str(run.folder), "--output", "typed.png"),
        ("analyse", "progress", run.name),
        ("translate", "--help"),
        ("get-data",),
    ):
        assert check(*in_terminal(command, *arguments, folder=place)), command


def test_the_screen():
    assert screen("a\rb\nxyz\x1b[A\rc\x1b[K\n\n") == "c\nxyz\n"
