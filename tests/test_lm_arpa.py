"""ARPA files: what is read, what is written, what is refused; and their binary copies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from lm_reference import DictModel, dict_models, to_dict, to_ngrams

from torchtune_smt.core.archive import cache_path, file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.lm import NgramModel, read_arpa, write_arpa
from torchtune_smt.lm.ngrams import Ngrams
from torchtune_smt.lm.tables import LmTables, build_tables, read_cache, write_cache

SMALL = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-2\t<unk>
0\t<s>\t-0.5
-1\t</s>
-1.5\ta\t-0.25
-1.25\tb\t0

\\2-grams:
-0.5\t<s> a
-0.75\ta b
-1\tb </s>

\\end\\
"""


def load(folder: Path, text: str | bytes) -> NgramModel:
    path = folder / "model.arpa"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return NgramModel.load(path, cache=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\t", " "),
        ("\n", "\r\n"),
        ("<unk>", "<UNK>"),
        ("-1.5\t", "-15e-1\t"),
        ("-1.5\t", "-0.00015E+4\t"),
        ("\\data\\", "made by hand\n\n\\data\\"),
        ("ngram 2=3", "ngram  2 = 3"),
        ("\\end\\\n", "\\end\\"),
        ("0\t<s>", "-INF  <s>"),
        ("0\t<s>", "-99\t<s>"),
        (" b\n", " b\t0.0 \n"),
        ("-2\t<unk>\n0\t<s>\t-0.5\n", "0\t<s>\t-0.5\n-2\t<unk>\n"),
    ],
)
def test_spellings_that_mean_the_same(tmp_path: Path, old: str, new: str) -> None:
    assert old in SMALL
    model = load(tmp_path, SMALL.replace(old, new))
    assert (model.order, model.words[0], len(model.words)) == (2, "<unk>", 5)
    assert model.score(["a", "b"]) == (-0.5 - 0.75 - 1.0, 0)
    assert model.score(["b", "c"]) == (-0.5 - 1.25 - 2.0 - 1.0, 1)


def test_an_unknown_word_that_is_not_there_gets_minus_100_and_words_may_be_any_utf8(
    tmp_path: Path,
) -> None:
    word = "größe日本\u00a0x"
    text = SMALL.replace("-2\t<unk>\n", "").replace("1=5", "1=4")
    model = load(tmp_path, text.replace("\tb", f"\t{word}").replace(" b", f" {word}"))
    assert model.words[0] == "<unk>"
    assert model.score(["a", word, "c"], eos=False) == (-0.5 - 0.75 - 100.0, 1)


ERRORS = [
    ("-0.75\ta b\n", "", 15, "the header counts 3 2-grams, and here they end after 2"),
    ("2=3", "2=2", 15, "more n-grams than the header's count"),
    ("1=5", "1=4", 10, "more 1-grams than the header's count"),
    ("1=5", "1=6", 11, "counts 6 1-grams, and here they end after 5"),
    ("2=3", "2=99999999", 3, "do not fit into a file of this size"),
    ("1=5", "1=0", 2, "there must be unigrams"),
    ("ngram 2=3", "ngram 3=3", 3, "'ngram 2=' was expected"),
    ("ngram 2=3", "ngram two=3", 3, "the header needs lines like"),
    ("ngram 1=5\nngram 2=3\n", "", 3, "has no 'ngram 1=' line"),
    ("\\2-grams:", "\\3-grams:", 12, "'\\\\2-grams:' was expected"),
    ("\\end\\\n", "", 17, "\\\\end\\\\ is missing"),
    ("\\end\\", "\\3-grams:", 17, "\\\\end\\\\ was expected"),
    ("-1.5\t", "-1.5x\t", 9, "no finite number"),
    ("-1.5\t", "nan\t", 9, "no finite number"),
    ("-1.5\t", "-inf\t", 9, "no finite number"),
    ("0\t<s>", "inf\t<s>", 7, "no finite number"),
    ("-1.5\t", "-1e999\t", 9, "no finite number"),
    ("-1.5\t", "--1\t", 9, "no finite number"),
    ("-1.5\t", "1.5\t", 9, "log probability above 0"),
    ("-0.25", "-0.2.5", 9, "no finite number"),
    ("a\t-0.25", "a\t-0.25\t7", 9, "too many fields for a 1-gram"),
    ("a b", "a b\t0 0", 14, "highest order, which has no back-off"),
    ("a b", "a b\tzero", 14, "highest order, which has no back-off"),
    ("a b", "a b\t-0.5", 14, "highest order, which has no back-off"),
    ("a b", "a", 14, "a 2-gram needs a log probability and 2 words"),
    ("a b", "a zebra", 14, "'zebra' of this 2-gram is not among the unigrams"),
    ("-1.25\tb\t0", "-1.25\ta\t0", 10, "'a' stands twice among the unigrams"),
    ("a b", "<s> a", 14, "'<s> a' stands twice"),
    ("<s>\t-0.5", "<t>\t-0.5", 6, "the unigrams lack <s>"),
    ("</s>\n-1.5", "</t>\n-1.5", 6, "the unigrams lack </s>"),
    ("-1.5\t", "-1e30\t", 9, "no finite number"),
    (SMALL, "\\data\\\n" + "".join(f"ngram {n}=1\n" for n in range(1, 8)), 8, "order 7: at most 6"),
    (SMALL, "\n\nhello\n", None, "no ARPA file"),
    (SMALL, "mmap lm http://kheafield.com/code format version 5\n\0", None, "binary of KenLM"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), ERRORS)
def test_errors_name_the_line(
    tmp_path: Path, old: str, new: str, line: int | None, message: str
) -> None:
    assert SMALL.count(old) >= 1
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, SMALL.replace(old, new, 1))
    assert (caught.value.path, caught.value.line) == (tmp_path / "model.arpa", line)


@given(dict_models())
@settings(max_examples=50)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, reference: DictModel
) -> None:
    folder = tmp_path_factory.mktemp("lm")
    ngrams = to_ngrams(reference)
    write_arpa(folder / "own.arpa.gz", ngrams)
    again = read_arpa(folder / "own.arpa.gz")
    assert to_dict(again) == to_dict(ngrams)
    (folder / "reference.arpa").write_text(reference.arpa())
    assert to_dict(read_arpa(folder / "reference.arpa")).prob == to_dict(ngrams).prob


def test_words_longer_than_the_buffer_are_written(tmp_path: Path) -> None:
    giant = "x" * (1 << 21)
    reference = DictModel({(w,): -1.0 for w in ("<s>", "</s>", "<unk>", giant, "y")})
    write_arpa(tmp_path / "own.arpa", to_ngrams(reference))
    assert to_dict(read_arpa(tmp_path / "own.arpa")) == reference


CHANGED = SMALL.replace("-0.5\t<s> a", "-0.1\t<s> a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model.arpa").write_text(SMALL)
    return tmp_path / "model.arpa"


def score_of_a(path: Path, *options: bool, **more: str) -> float:
    return NgramModel.load(path, *options, **more).score(["a"], eos=False)[0]


def assert_same(model: NgramModel, other: NgramModel) -> None:
    assert model.order == other.order
    assert model.words.names(range(len(model.words))) == other.words.names(range(len(other.words)))
    for one, two in zip(model.tables, other.tables, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    assert model.score(["a", "b", "c"]) == other.score(["a", "b", "c"])


def test_cache_is_written_and_read(path: Path) -> None:
    model = NgramModel.load(path)
    stored = read_cache(path, file_checksum(path))
    assert stored is not None
    assert_same(model, NgramModel(*stored))
    assert_same(model, NgramModel.load(path))
    # It is what is read: a copy with other numbers says so. What is read is private.
    changed = NgramModel.load(path)
    changed.tables.nodes["prob"][1:] -= 1
    assert score_of_a(path) == -0.5
    write_cache(path, file_checksum(path), changed.order, changed.words, changed.tables)
    assert score_of_a(path) == -1.5
    assert_same(model, NgramModel.load(path, cache=False))


def test_cache_of_other_content_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert score_of_a(path) == -0.5
    times, expected = path.stat(), file_checksum(path)
    for cache in (False, True, True):
        assert score_of_a(path, cache, expected=expected) == -0.5
    # In place, of equal size, with the old time.
    path.write_text(CHANGED)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for _ in range(2):
        assert score_of_a(path) == pytest.approx(-0.1)
    for cache in (False, True):
        with pytest.raises(InputError, match="is damaged or another file; remove the model's"):
            NgramModel.load(path, cache, expected=expected)

    def replaced(ngrams: Ngrams) -> LmTables:
        """A file that is replaced while it is parsed leaves no wrong cache."""
        path.write_text(SMALL)
        return build_tables(ngrams)

    cache_path(path).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("torchtune_smt.lm.model.build_tables", replaced)
        assert score_of_a(path) == pytest.approx(-0.1)
    assert score_of_a(path) == -0.5


def test_damaged_caches_are_replaced(path: Path) -> None:
    model = NgramModel.load(path)
    whole = cache_path(path).read_bytes()
    for damaged in (b"x" * 4096, *(whole[:kept] for kept in (0, 5, 12, 100, 700))):
        cache_path(path).write_bytes(damaged)
        assert read_cache(path, file_checksum(path)) is None
        assert_same(model, NgramModel.load(path))
        assert cache_path(path).read_bytes() == whole


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
def test_nothing_is_written_through_what_has_the_name_of_a_cache(
    kind: str, path: Path, tmp_path: Path
) -> None:
    thesis = tmp_path / "thesis"
    thesis.write_text("mine")
    if kind == "pipe":
        os.mkfifo(cache_path(path))
    elif kind == "folder":
        cache_path(path).mkdir()
    else:
        cache_path(path).symlink_to(thesis if kind == "link" else "/dev/zero")
    for _ in range(2):
        assert_same(NgramModel.load(path), NgramModel.load(path, cache=False))
    assert thesis.read_text() == "mine"
    assert cache_path(path).is_file() == (kind in ("link", "device"))
    assert len(list(tmp_path.iterdir())) == 3
