"""Splitting of compounds against all ways to take a word apart."""

import math
from pathlib import Path
from typing import Any

import pytest
from commands import Run, run_command, train
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.data.compounds import FILLERS, LEAST, CompoundSplitter
from torchtune_smt.data.dataset import Dataset

COUNTS = {"aktion": 5, "plan": 20, "aktionsplan": 2, "freitag": 900, "frei": 50, "tage": 30}


def all_splits(word: str, counts: dict[str, int]) -> list[list[str]]:
    """Every way to take a word apart into words with counts, fillers between them."""
    found = [[word]] if word in counts else []
    for end in range(LEAST, len(word)):
        if word[:end] not in counts:
            continue
        for filler in FILLERS["de"]:
            if word.startswith(filler, end):
                rest = all_splits(word[end + len(filler) :], counts)
                found += [[word[:end], *parts] for parts in rest]
    return found


def mean(parts: list[str], counts: dict[str, int]) -> float:
    return sum(math.log(counts[part]) for part in parts) / len(parts)


# Few letters, among them those of fillers, so that words have many splits.
part = st.text("aes", min_size=LEAST, max_size=6)


@given(
    st.dictionaries(part, st.integers(1, 50), min_size=1, max_size=25),
    st.lists(part, min_size=1, max_size=4).map("".join),
)
def test_the_split_has_the_largest_mean(counts: dict[str, int], word: str) -> None:
    found = CompoundSplitter("de", counts).parts(word)
    splits = all_splits(word, counts)
    if not splits or len(word) < 2 * LEAST:
        assert found == [word]
        return
    assert found in splits
    best = max(mean(parts, counts) for parts in splits)
    assert mean(found, counts) == pytest.approx(best)
    # Of equal ones the fewest parts.
    assert len(found) == min(len(p) for p in splits if abs(mean(p, counts) - best) < 1e-12)


def test_examples() -> None:
    """Koehn and Knight's: a compound is split where its parts are the more frequent words."""
    splitter = CompoundSplitter("de", COUNTS)
    for word, parts in {
        "aktionsplan": "aktion plan",
        "freitag": "freitag",
        "freitagsplan": "freitag plan",
        "tagesplan": "tage plan",
        "aktionstage": "aktion tage",
    }.items():
        assert splitter.parts(word) == parts.split()
    # No parts of fewer letters, no words with digits, none that nothing of is known.
    words = "planxyz plan2plan unbekannt plan tageplan".split()
    assert splitter.split(words) == [*words[:4], "tage", "plan"]
    splitter = CompoundSplitter("de", {"Plan": 9, "plan": 1, "Aktion": 3, "der": 100})
    words = ["Aktionsplan", "AKTIONSPLAN", "Plan", "plan"]
    assert splitter.split(words) == ["Aktion", "Plan", "Aktion", "Plan", "Plan", "plan"]


def test_counts_are_kept_in_a_file(tmp_path: Path) -> None:
    text = [["plan", "plan", "ab"], ["aktion", "x1y2z3"]]
    splitter = CompoundSplitter.of_text("de", text)
    splitter.save(tmp_path / "counts.gz")
    assert read_lines(tmp_path / "counts.gz") == ["aktion\t1", "plan\t2"]
    loaded = CompoundSplitter.load("de", tmp_path / "counts.gz")
    assert loaded.counts == splitter.counts
    assert loaded.parts("aktionsplan") == splitter.parts("aktionsplan") == ["aktion", "plan"]
    (tmp_path / "bad").write_text("plan\t2\naktion 1\n")
    with pytest.raises(InputError, match="bad:2: expected a word, a tab and its count"):
        CompoundSplitter.load("de", tmp_path / "bad")


def test_a_dataset_splits_its_source(tmp_path: Path) -> None:
    for name, lines in {
        "train.de": "Der Plan\nein Plan\ndie Aktion\n",
        "train.en": "a\nb\nc\n",
        "dev.de": "der Aktionsplan\n",
        "dev.en": "aktionsplan\n",
    }.items():
        (tmp_path / name).write_text(lines)
    options: dict[str, Any] = {"lowercase": True, "test": None, "split_compounds": "de"}
    dataset = Dataset("x", "de", "en", str(tmp_path), **options)
    dev = dataset.require("dev")
    assert dev.source == [["der", "aktion", "plan"]]
    assert dev.references == [[["aktionsplan"]]]
    assert dataset.description() == "de-en lowercase split_compounds=de"
    with pytest.raises(InputError, match=r"data\.train is null; name its files"):
        Dataset("x", "de", "en", str(tmp_path), train=None, **options).require("dev")


def test_translate_splits_as_the_run_did(place: Path, run: Run) -> None:
    options = ["data.split_compounds=de", "model.folder=split", "tuner.epochs=1"]
    split = train(place, "split run", *options)
    assert (split.folder / "compounds.tsv.gz").is_file()
    assert "  compounds.tsv.gz      counts of words" in split.outcome.out
    assert not (run.folder / "compounds.tsv.gz").exists()
    arguments = [f"weights={split.weights}", f"input={example_folder() / 'test.de'}"]
    expected = (split.folder / "test.translations.txt").read_text()
    assert run_command("translate", *arguments, folder=place).check().out == expected
    # The counts are those of the run: with others, nothing is split.
    CompoundSplitter("de", {"wort": 1}).save(split.folder / "compounds.tsv.gz")
    assert run_command("translate", *arguments, folder=place).check().out != expected
