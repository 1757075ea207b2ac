import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import RESERVED
from torchtune_smt.data.bitext import (
    Corpus,
    find_files,
    read_corpus,
    write_corpus,
)
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.data.preprocess import LengthFilter, Preprocessor


def write(path: Path, *lines: str) -> Path:
    text = "".join(f"{line}\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    alone = read_corpus(write(tmp_path / "input.de", "ein haus"))
    assert (alone.source, alone.references) == ([["ein", "haus"]], [[]])
    source = write(tmp_path / "dev.de.gz", "a  A", "b", "", "d")
    references = [
        write(tmp_path / "dev.en.0", *"abcd"),
        write(tmp_path / "dev.en.1", "a", "", "", "d"),
    ]
    corpus = read_corpus(source, references, empty="skip")
    assert corpus.source == [["a", "A"], ["d"]] and corpus.targets == [["a"], ["d"]]
    assert corpus.lines == [1, 4]
    assert corpus.summary() == "2 sentences, 2 lines dropped (2 empty)"
    source = write(tmp_path / "train.de", "a a a", "b b b b", "c")
    target = write(tmp_path / "train.en", "a a", "b", "c c c")
    corpus = read_corpus(source, [target], lengths=LengthFilter(max_length=3, max_ratio=2))
    assert corpus.targets == [["a", "a"]]
    assert corpus.summary() == (
        "1 sentences, 2 lines dropped (1 too long, 1 of too different lengths)"
    )
    source, target = write(tmp_path / "x.de", "Ein Haus."), write(tmp_path / "x.en", "I can't.")
    corpus = read_corpus(
        source, [target], source_text=Preprocessor("de"), target_text=Preprocessor("en")
    )
    assert (corpus.source, corpus.targets) == ([["ein", "haus", "."]], [["i", "can", "'t", "."]])


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (["a", "b", "c"], ["a", "   ", "c"], {}, r"en:2: has no words.*with data\.empty=skip"),
        *((["a", f"b {w}"], ["a", "b"], {}, "de:2: .* is reserved") for w in RESERVED),
        # No language model is estimated of unknown words.
        (["a", "<unk>"], ["a", "<unk>"], {"training": True}, "en:2: the word '<unk>' is reserved"),
        (["a", "<UNK>"], ["a", "<UNK>"], {"training": True}, "en:2: the word '<UNK>' is reserved"),
        ([], [], {}, "de: is empty"),
        (
            ["a a a a", ""],
            ["a", "b"],
            {"empty": "skip", "lengths": LengthFilter(max_length=3)},
            "no sentence is left of 2 .*1 too long, 1 empty",
        ),
    ],
)
def test_bad_texts(
    tmp_path: Path, source: list[str], target: list[str], options: dict[str, Any], message: str
) -> None:
    paths = write(tmp_path / "x.de", *source), [write(tmp_path / "x.en", *target)]
    with pytest.raises(ValueError, match=message):
        read_corpus(*paths, **options)
    if "<unk>" in target:
        read_corpus(*paths)
        read_corpus(paths[0], [write(tmp_path / "good.en", "a", "b")], training=True)


def test_line_counts_that_differ(tmp_path: Path) -> None:
    source, good = (write(tmp_path / name, *"xxx") for name in ("dev.de", "dev.en.0"))
    bad = write(tmp_path / "dev.en.1", "x")
    with pytest.raises(InputError, match=r"dev\.en\.1 has 1 lines, dev\.de has 3") as error:
        read_corpus(source, [good, bad])
    assert error.value.path == bad


def test_training_pairs_have_one_target(tmp_path: Path) -> None:
    source = write(tmp_path / "train.de", "a", "b")
    targets = [write(tmp_path / f"train.en.{i}", "a", "") for i in range(3)]
    assert len(read_corpus(source, targets, empty="skip").references[0]) == 3
    for train in ("train", [str(source), *map(str, targets)]):
        options = {"folders": str(tmp_path), "train": train, "empty": "skip"}
        dataset = Dataset("x", "de", "en", **options)  # type: ignore[arg-type]
        with pytest.raises(
            InputError, match=r"train\.en\.1: is a further target side of .*train\.de"
        ):
            dataset.require("train", training=True)


def test_files_are_found(tmp_path: Path) -> None:
    def refused(message: str, folder: Path = tmp_path) -> None:
        with pytest.raises(InputError, match=message):
            find_files(folder, "dev", "de", "en")

    refused("there is no such folder", tmp_path / "nowhere")
    refused(r"there is no dev\.de, plain or \.gz")
    source = write(tmp_path / "dev.de.gz", "a")
    refused(r"references of dev\.de\.gz are missing: neither dev\.en nor")
    # Many references in the order of their numbers.
    names = [f"dev.en.{i}{'.gz' if i % 2 else ''}" for i in range(12)]
    for name in names:
        write(tmp_path / name, "a")
    assert find_files(tmp_path, "dev", "de", "en") == (source, [tmp_path / name for name in names])
    (tmp_path / names[1]).unlink()
    refused(r"dev\.en\.1 is missing, and dev\.en\.11 is there")
    target = write(tmp_path / "dev.en", "a")
    refused(r"both dev\.en and dev\.en\.0")
    for path in tmp_path.glob("dev.en.*"):
        path.unlink()
    assert find_files(tmp_path, "dev", "de", "en") == (source, [target])


WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=5).filter(
    lambda word: word not in RESERVED
)
SENTENCES = st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=1, max_size=6)


@given(SENTENCES)
def test_written_and_read_back(tmp_path_factory: pytest.TempPathFactory, source: list) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    references = [[words, words[::-1]] for words in source]
    corpus = Corpus(source, references, list(range(1, len(source) + 1)))
    paths = folder / "train.de.gz", [folder / "train.en.0", folder / "train.en.1.gz"]
    write_corpus(corpus, *paths)
    assert read_corpus(*paths) == corpus


def test_corpora_one_after_the_other() -> None:
    first = read_corpus("x.de", ["x.en"], lines=[["a", ""], ["A", "B"]], empty="skip")
    second = read_corpus("y.de", ["y.en"], lines=[["", "c"], ["B", "C"]], empty="skip")
    both = first.followed_by(second)
    assert both.source == [["a"], ["c"]]
    assert both.targets == [["A"], ["C"]]
    assert both.dropped == {"empty": 2}


@pytest.mark.parametrize(
    ("name", "source", "part", "size", "references"),
    [
        ("multi30k-de-en", "de", "train", 29000, 1),
        ("multi30k-de-en", "de", "dev", 1014, 1),
        ("fisher-es-en", "es", "test", 3629, 4),
    ],
)
def test_real_corpora(
    shared: Path, name: str, source: str, part: str, size: int, references: int
) -> None:
    corpus = read_corpus(*find_files(shared / "data" / name, part, source, "en"))
    assert len(corpus) == size
    assert {len(sentence) for sentence in corpus.references} == {references}
