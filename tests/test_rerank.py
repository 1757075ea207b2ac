"""Reranking, by the command."""

import gzip
import os
import random
import re

import pytest
from commands import run_command
from small_lists import put

from torchtune_smt.core import textio
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import Origin, save_weights
from torchtune_smt.kbest import formats

LIST = """\
0 ||| a b  ||| LM0= -1 W_x= 1 ||| -7 ||| 0-0 |||  src
0 ||| c d  ||| LM0= -2 W_y= 1 ||| -8 ||| 0-1 ||| src
1 ||| e  ||| LM0= -1 ||| -1
1 ||| für uns  ||| LM0= -2 W_y= 2 ||| -2
"""
WEIGHTS = "LM0_0 1\nW_y 2\nW_z 0\n"


@pytest.fixture
def folder(tmp_path):
    return put(tmp_path, {"list": LIST, "weights": WEIGHTS})


def rerank(folder, *options, error=""):
    given = {"weights": "weights", "input": "list"}
    given |= dict(option.split("=", 1) for option in options)
    outcome = run_command("rerank", *(f"{n}={v}" for n, v in given.items()), folder=folder)
    assert outcome.code == bool(error) and re.search(error, outcome.err), outcome.err
    return outcome


def test_best_hypotheses(folder):
    said = "7 of 9 features with a weight are nowhere in list: W_1, W_2, W_3, W_4, W_5 and 2 more"
    for more, err in (["W_z 0"], ""), ([f"W_{i} {i}" for i in range(1, 8)], f"weights: {said}\n"):
        put(folder, {"weights": ["LM0_0 1", "W_y 2", *more]})
        outcome = rerank(folder)
        assert (outcome.out, outcome.err) == ("c d\nfür uns\n", err)


def test_the_mean_of_several_weights(folder):
    """A feature that is not named in a file has the weight 0 there."""
    put(folder, {"other": ["LM0_0 2", "W_x 12"], "mean": ["LM0_0 1", "W_y 0.5", "W_x 3"]})
    put(folder, {"third": ["LM0_0 1"], "fourth": ["W_x 0"]})
    several = rerank(folder, "mean_with=[other,third,fourth]", "n_best=2").out
    assert several == rerank(folder, "weights=mean", "n_best=2").out
    assert several != rerank(folder, "n_best=2").out
    rerank(folder, "mean_with=[none]", error="none: no such file")
    rerank(folder, "mean_with=other", error="mean_with must be a list, as in .a,b., not 'other'")


def test_sorted_lists(folder):
    first, second, third, fourth = LIST.splitlines()
    expected = [second.replace("-8", "0"), first.replace("-7", "-1")]
    expected += [fourth.replace("||| -2", "||| 2"), third]
    rerank(folder, "n_best=2", "output=sorted.gz")
    assert gzip.decompress((folder / "sorted.gz").read_bytes()).decode().splitlines() == expected
    rerank(folder, "n_best=1", "output=one")
    assert (folder / "one").read_text("utf-8").splitlines() == expected[::2]
    assert rerank(folder, "n_best=1", "output=-").out.splitlines() == expected[::2]
    assert not (folder / "-").exists()
    # From a pipe, too.
    reader, writer = os.pipe()
    os.write(writer, LIST.encode())
    os.close(writer)
    rerank(folder, "n_best=2", f"input=/dev/fd/{reader}", "output=sorted")
    os.close(reader)
    assert (folder / "sorted").read_text("utf-8").splitlines() == expected


@pytest.mark.parametrize("letter", ["\u00a0", "\u3000", "\x1c", "\u2028"])
def test_what_looks_like_a_blank_is_part_of_a_word(folder, letter):
    lines = [f"0 ||| a{letter}||| b ||| W_x= 1 ||| 1 ||| 0-0", "0 ||| c ||| W_y= 1 ||| 2 ||| 1-1"]
    put(folder, {"list": "\ufeff" + "\r\n".join(lines)})
    rerank(folder, "n_best=2", "output=sorted")
    expected = [lines[1], lines[0].replace("||| 1 |||", "||| 0 |||")]
    assert (folder / "sorted").read_text("utf-8") == "".join(f"{e}\n" for e in expected)
    assert rerank(folder).out == "c\n"


@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_as_the_whole(folder, monkeypatch, seed):
    draw = random.Random(seed)
    names = draw.choice([range(40), [f"u{n}" for n in range(40)]])
    lines = [
        f"{name} ||| w{draw.random()}  x ||| LM0= {draw.randint(-9, 9)} "
        f"W_{draw.choice('xyz')}= 1 ||| {draw.random()} ||| 0-0"
        for name in names
        for _ in range(draw.randint(1, 5))
    ]
    put(folder, {"list": lines})
    for option in ("n_best=null", "n_best=2"):
        # Held, since nothing could be left out otherwise.
        rerank(folder, option, "on_error=skip", "output=whole")
        monkeypatch.setattr(formats, "PIECE", draw.choice([1, 200, 1000]))
        monkeypatch.setattr(textio, "_BLOCK", draw.choice([7, 100]))
        rerank(folder, option, "output=pieces")
        assert (folder / "pieces").read_bytes() == (folder / "whole").read_bytes()
    bad = draw.randrange(1, len(lines))
    other = "999 ||| x ||| LM0= 1 ||| 1\n999"
    for old, new, word in (
        ("LM0= ", "LM0= x", "no finite number"),
        ("LM0=", "LM1=", "LM1="),
        (lines[bad].split()[0], other, "sentence 999|numbered|no label"),
    ):
        damaged = [*lines[:bad], lines[bad].replace(old, new, 1), *lines[bad + 1 :]]
        if names[0] == 0 or not word.startswith("sentence"):
            put(folder, {"list": damaged})
            rerank(folder, error=f"list:{bad + 1}: .*({word})")


def test_faulty_lines_are_skipped_if_asked(folder):
    lines = [*LIST.splitlines()[:2], "1 ||| e ||| LM0= nan ||| -1", "2 ||| f ||| LM0= 0 ||| 0"]
    said = "1 lines with a bad value, 1 sentences with a fault, 1 sentences without a list"
    for some, out in ((lines, "c d\n\nf\n"), (lines[:3], "c d\n\n")):
        put(folder, {"list": some})
        outcome = rerank(folder, "on_error=skip")
        assert outcome.out == out and said in outcome.err


def test_what_stands_for_a_missing_value(folder):
    put(folder, {"list": "0 ||| a ||| L=-1 M=-1 ||| 0\n0 ||| b ||| L=-2 ||| 0\n"})
    put(folder, {"weights": "L 1\nM 1\n"})
    for missing, best in ((0, "a"), (1.5, "b")):
        assert rerank(folder, f"missing={missing}").out == f"{best}\n"
    # What the weights were tuned with tells.
    save_weights(folder / "weights", Weights(["L"]), Origin.of_lists(["list"], ["L"]))
    assert rerank(folder).out == "a\n"


def test_lists_of_other_tools(folder):
    put(folder, {"weights": "lm -1\ncomet 2\n", "comet": "4\n0\n0\n0\n"})
    for n, (text, lm) in enumerate([("a  b", -1), ("c ", -3)], 1):
        scores = f'u1 {{"lm": {lm}}}\nu2 {{"lm": "tensor({lm})"}}\n'
        put(folder / f"lists/{n}best_recog", {"text": f"u1 {text}\nu2 x\n", "scores": scores})
    rerank(folder, "input=lists", "output=best")
    assert (folder / "best").read_text() == "u1 c \nu2 x\n"
    # The model score of a folder that is written is a feature when it is read.
    rerank(folder, "input=lists", "output=new", "n_best=2", "columns.comet=comet")
    assert (folder / "new/1best_recog/text").read_text() == "u1 a  b\nu2 x\n"
    assert (folder / "new/2best_recog/score").read_text() == "u1 3\nu2 1\n"
    rerank(folder, "input=lists", "n_best=1", error="name one with output=")
    # A translation is one line.
    hypothesis = '{"text": "one\\ntwo", "features": {"lm": 1}}'
    put(folder, {"list": f'{{"id": "u", "hypotheses": [{hypothesis}]}}\n'})
    assert rerank(folder).out == "u one two\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"list": "0 ||| a ||| ||| -1\n0 ||| b ||| ||| -2\n"}, "list: has no features"),
        (
            {"weights": "other 1\n"},
            "weights: has no weight for any feature of list: it has other, and the lists have "
            "LM0_0, W_x, W_y; was it made for other lists",
        ),
    ],
)
def test_what_is_refused(files, message, folder):
    put(folder, files)
    rerank(folder, error=message)
