"""Weights files: round trips, other tools' files, and what is wrong with bad ones."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights, save_weights

name = st.text(
    st.one_of(st.sampled_from("ab=# \t|é:"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=8,
).filter(lambda n: n.strip(" \t") == n and not n.startswith("#") and not {*"\n\r\0"} & {*n})
name = name.filter(lambda n: not n.endswith((" =", "\t=")))
value = st.floats(allow_nan=False, allow_infinity=False)


@given(entries=st.dictionaries(name, value, max_size=12), dense=st.integers(0, 3))
def test_what_is_saved_is_loaded_exactly(entries, dense, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.txt"
    weights = Weights(list(entries)[:dense])
    weights.set(list(entries), list(entries.values()))
    count = save_weights(path, weights)
    active = {n: v for n, v in entries.items() if v != 0}
    assert count == len(active)
    names, values = read_weights(path)
    assert dict(zip(names.names(range(len(names))), values.tolist(), strict=True)) == active
    # Weights of either kind are saved alike.
    again = path.with_name("again")
    assert save_weights(again, weights.frozen()) == count
    assert again.read_bytes() == path.read_bytes()


def test_order_and_gzip(tmp_path):
    weights = Weights(["LM", "Glue", "Zero"])
    weights.set(["LM", "Glue", "z", "b=2", "gone"], [0.1, -1 / 3, 1.0, 2e-300, 0.0])
    text = "LM 0.1\nGlue -0.3333333333333333\nb=2 2e-300\nz 1.0\n"
    save_weights(tmp_path / "w.txt", weights)
    assert (tmp_path / "w.txt").read_text() == text
    save_weights(tmp_path / "w.gz", weights)
    assert gzip.decompress((tmp_path / "w.gz").read_bytes()).decode() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.gz", "w.txt"]
    assert len(read_weights(tmp_path / "w.gz")[0]) == 4


@pytest.mark.parametrize("names", [["\ufeffa"], ["\ufeff"], ["\ufeff", "\ufeffa", "b"]])
@pytest.mark.parametrize("dense", [0, 1])
def test_a_name_may_begin_with_a_byte_order_mark(tmp_path, names, dense):
    weights = Weights(names[:dense])
    weights.set(names, [1.0] * len(names))
    save_weights(tmp_path / "w", weights)
    found, _ = read_weights(tmp_path / "w")
    assert sorted(found.names(range(len(found)))) == sorted(names)


def test_other_tools_files(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(
        b"# a comment\n\nLanguageModel 1.5\r\n  Glue\t-2e-3\nx=y=.5\nshort  7 \n"
        b"R:[X] ||| a = b 1\nLM0= 0.5\nPenalty = -1\nTM0 =2\n= 3"
    )
    names, values = read_weights(path)
    assert names.names(range(len(names))) == [
        "LanguageModel",
        "Glue",
        "x=y",
        "short",
        "R:[X] ||| a = b",
        "LM0=",
        "Penalty",
        "TM0",
        "=",
    ]
    assert values.tolist() == [1.5, -0.002, 0.5, 7.0, 1.0, 0.5, -1.0, 2.0, 3.0]


def test_empty_files(tmp_path):
    for text in ("", "\n", "# nothing\n"):
        (tmp_path / "w").write_text(text)
        names, values = read_weights(tmp_path / "w")
        assert len(names) == values.size == 0
    assert save_weights(tmp_path / "w", Weights()) == 0
    assert (tmp_path / "w").read_bytes() == b""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"lonely", "has no value"),
        (b"a=", "has no value"),
        (b"=1", "has no name"),
        (b"a nan", "no finite number"),
        (b"a -inf", "no finite number"),
        (b"a 1e999", "no finite number"),
        (b"a 1.2.3", "no finite number"),
        (b"a 1_0", "no finite number"),
        (b"a 0x10", "no finite number"),
        (b"a \xff 1", "UTF-8"),
        (b"good 2", "'good' has a weight already, in line 2; remove one"),
    ],
)
@pytest.mark.parametrize("after", [b"", b"\nlonely\n", b"\nmore 1"])
def test_bad_lines_are_named(tmp_path, line, message, after):
    path = tmp_path / "w"
    path.write_bytes(b"# comment\ngood 1\n\n" + line + (b"" if b"UTF" in line else after))
    if message.startswith("'good'") and after == b"\nlonely\n":
        message = "has no value"
        line_number = 5
    else:
        line_number = 4
    with pytest.raises(InputError, match=message) as caught:
        read_weights(path)
    assert str(caught.value).startswith(f"{path}:{line_number}: ")


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_weights(tmp_path / "nowhere")


@pytest.mark.parametrize("bad", ["#a", " a", "a\t", "a\nb", "a\0b", "a =", ""])
def test_names_that_cannot_be_written(tmp_path, bad):
    weights = Weights()
    weights.set([bad], [1.0])
    with pytest.raises(ValueError, match="cannot be written"):
        save_weights(tmp_path / "w", weights)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_not_saved(tmp_path, number):
    weights = Weights()
    weights.set(["fine", "broken"], [1.0, number])
    with pytest.raises(ValueError, match="weight of 'broken' is"):
        save_weights(tmp_path / "w", weights)
    assert not any(tmp_path.iterdir())
