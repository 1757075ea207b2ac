"""ARPA files: what is read, what is written, what is refused; and their binary copies."""

from __future__ import annotations

import gzip
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


def test_small_model(tmp_path: Path) -> None:
    model = load(tmp_path, SMALL)
    assert model.order == 2
    assert model.words.names(range(5)) == ["<unk>", "<s>", "</s>", "a", "b"]
    assert model.score(["a", "b"]) == (-0.5 - 0.75 - 1.0, 0)
    assert model.score(["b", "c"]) == (-0.5 - 1.25 - 2.0 - 1.0, 1)


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
    assert model.score(["a", "b", "c"]) == load(tmp_path, SMALL).score(["a", "b", "c"])
    assert model.words[0] == "<unk>"
    assert len(model.words) == 5


def test_without_unknown_word_it_gets_minus_100(tmp_path: Path) -> None:
    model = load(tmp_path, SMALL.replace("-2\t<unk>\n", "").replace("1=5", "1=4"))
    assert model.words[0] == "<unk>"
    assert model.score(["c"], bos=False, eos=False) == (-100.0, 1)


def test_words_may_be_any_utf8(tmp_path: Path) -> None:
    word = "größe日本\u00a0x"
    model = load(tmp_path, SMALL.replace("\ta", f"\t{word}").replace(" a", f" {word}"))
    assert model.score([word, "b"]) == (-0.5 - 0.75 - 1.0, 0)


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


def test_written_numbers_keep_seven_decimals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ("<s>", "</s>", "<unk>", *(f"w{i}" for i in range(1000)))
    values = -(10.0 ** rng.uniform(-9, 2, len(words)))
    reference = DictModel({(w,): float(v) for w, v in zip(words, values, strict=True)})
    reference.prob["a", "b"] = reference.prob["a",] = reference.prob["b",] = -1.0
    reference.backoff["a",] = 123.456
    ngrams = to_ngrams(reference)
    write_arpa(tmp_path / "own.arpa", ngrams)
    again = read_arpa(tmp_path / "own.arpa")
    np.testing.assert_allclose(again.prob[0], ngrams.prob[0], rtol=1e-7, atol=6e-8)
    np.testing.assert_allclose(again.backoff[0], ngrams.backoff[0], rtol=1e-7, atol=6e-8)


def test_words_longer_than_the_buffer_are_written(tmp_path: Path) -> None:
    giant = "x" * (1 << 21)
    reference = DictModel({(w,): -1.0 for w in ("<s>", "</s>", "<unk>", giant, "y")})
    write_arpa(tmp_path / "own.arpa", to_ngrams(reference))
    assert to_dict(read_arpa(tmp_path / "own.arpa")) == reference


def assert_same(model: NgramModel, other: NgramModel) -> None:
    assert model.order == other.order
    assert model.words.names(range(len(model.words))) == other.words.names(range(len(other.words)))
    for one, two in zip(model.tables, other.tables, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    assert model.score(["a", "b", "c"]) == other.score(["a", "b", "c"])


def test_cache_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa.gz"
    path.write_bytes(gzip.compress(SMALL.encode()))
    model = NgramModel.load(path)
    stored = read_cache(path, file_checksum(path))
    assert stored is not None
    assert_same(model, NgramModel(*stored))
    assert_same(model, NgramModel.load(path))
    # It is what is read: a copy with other numbers says so.
    changed = NgramModel.load(path)
    changed.tables.nodes["prob"][1:] -= 1
    write_cache(path, file_checksum(path), changed.order, changed.words, changed.tables)
    assert NgramModel.load(path).score(["a"])[0] == model.score(["a"])[0] - 2
    assert_same(model, NgramModel.load(path, cache=False))


def test_tables_read_from_the_cache_are_private(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(SMALL)
    NgramModel.load(path)
    NgramModel.load(path).tables.nodes["prob"][:] = 0
    assert NgramModel.load(path).score(["a"])[0] != 0


def test_cache_of_other_content_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(SMALL)
    assert NgramModel.load(path).score(["a"], eos=False)[0] == -0.5
    times = path.stat()
    # In place, of equal size, with the old time.
    path.write_text(SMALL.replace("-0.5\t<s> a", "-0.1\t<s> a"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert NgramModel.load(path).score(["a"], eos=False)[0] == pytest.approx(-0.1)
    assert NgramModel.load(path).score(["a"], eos=False)[0] == pytest.approx(-0.1)


def test_a_file_replaced_while_it_is_parsed_leaves_no_wrong_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(SMALL)

    def replaced(ngrams: Ngrams) -> LmTables:
        path.write_text(SMALL.replace("-0.5\t<s> a", "-0.1\t<s> a"))
        return build_tables(ngrams)

    monkeypatch.setattr("torchtune_smt.lm.model.build_tables", replaced)
    assert NgramModel.load(path).score(["a"], eos=False)[0] == -0.5
    monkeypatch.undo()
    assert NgramModel.load(path).score(["a"], eos=False)[0] == pytest.approx(-0.1)


def test_another_file_than_the_expected_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(SMALL)
    expected = file_checksum(path)
    for cache in (False, True, True):
        assert NgramModel.load(path, cache, expected=expected).score(["a"], eos=False)[0] == -0.5
    path.write_text(SMALL.replace("-0.5\t<s> a", "-0.1\t<s> a"))
    for cache in (False, True):
        with pytest.raises(InputError, match="is damaged or another file; remove the model's"):
            NgramModel.load(path, cache, expected=expected)


@pytest.mark.parametrize("kept", [0, 5, 12, 100, 700, -1])
def test_damaged_caches_are_replaced(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(SMALL)
    model = NgramModel.load(path)
    whole = cache_path(path).read_bytes()
    cache_path(path).write_bytes(b"x" * 4096 if kept < 0 else whole[:kept])
    assert read_cache(path, file_checksum(path)) is None
    assert_same(model, NgramModel.load(path))
    assert cache_path(path).read_bytes() == whole


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_nothing_is_written_through_what_has_the_name_of_a_cache(kind: str, tmp_path: Path) -> None:
    path, thesis = tmp_path / "lm.arpa", tmp_path / "thesis"
    path.write_text(SMALL)
    thesis.write_text("mine")
    if kind == "pipe":
        os.mkfifo(cache_path(path))
    else:
        cache_path(path).symlink_to(thesis if kind == "link" else "/dev/zero")
    assert_same(NgramModel.load(path), NgramModel.load(path, cache=False))
    assert thesis.read_text() == "mine"
    assert cache_path(path).is_file() == (kind != "pipe")


def test_where_no_cache_can_be_written_the_model_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(SMALL)
    cache_path(path).mkdir()
    assert NgramModel.load(path).score(["a"], eos=False)[0] == -0.5
    assert NgramModel.load(path).score(["a"], eos=False)[0] == -0.5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.arpa", "model.arpa.cache"]


def test_multi30k_cache(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.arpa.gz"
    path.symlink_to(shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz")
    assert_same(NgramModel.load(path), NgramModel.load(path))
