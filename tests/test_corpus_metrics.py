"""Metrics with corpus statistics: against plain definitions, sacrebleu, and published errors."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt import KBestLists, measured
from torchtune_smt.metrics import CharacterErrorRate, WordErrorRate

words = st.lists(st.sampled_from("a bb c dd é 猫".split()), max_size=6)
several = st.lists(words, min_size=1, max_size=3)
corpora = st.lists(st.tuples(several, several), min_size=1, max_size=3)


def distance(a, b):
    """Return the Levenshtein distance, plainly."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def of_strings(corpus):
    return KBestLists.of_strings([[" ".join(h) for h in lists] for lists, _ in corpus])


@pytest.mark.parametrize("metric", [WordErrorRate(), CharacterErrorRate()])
@given(corpus=corpora)
def test_errors(metric, corpus):
    found = measured(of_strings(corpus), [references for _, references in corpus], metric)
    units = (lambda one: one) if isinstance(metric, WordErrorRate) else " ".join
    expected = [
        [min(distance(units(h), units(r)) for r in refs), np.mean([len(units(r)) for r in refs])]
        for lists, refs in corpus
        for h in lists
    ]
    assert found.statistics.tolist() == expected
    assert found.gain.tolist() == [-errors for errors, _ in expected]
    errors, length = np.sum(expected, axis=0)
    rate = errors / length if length else min(errors, 1)
    assert found.measure.scores(found.statistics.sum(axis=0)) == pytest.approx(-rate)


@pytest.mark.parametrize(
    ("name", "errors"), [("dev_clean", 925), ("dev_other", 1840), ("test_clean", 949)]
)
def test_errors_of_a_recogniser_are_as_published(shared: Path, name: str, errors: int) -> None:
    with tarfile.open(shared / "data" / "librispeech-nbest" / f"{name}.tar.xz") as archive:

        def read(member: str) -> dict[str, str]:
            lines = archive.extractfile(f"{name}/{member}").read().decode().splitlines()
            return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}

        references = read("text")
        first = read("logdir/output.1/1best_recog/text")
    lists = KBestLists.of_strings([[first[key]] for key in references])
    found = measured(lists, [[line.split()] for line in references.values()], WordErrorRate())
    assert found.statistics[:, 0].sum() == errors == -found.gain.sum()
