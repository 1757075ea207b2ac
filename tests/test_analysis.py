"""Where systems differ: counted by hand, and with planted differences."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.evaluation.translations import (
    SentenceScores,
    align,
    extremes,
    ngram_differences,
    word_f1,
)

REFERENCES = [["a b b c", "a b d"], ["a a e"]]


def words(texts: list[str]) -> list[list[str]]:
    return [text.split() for text in texts]


def test_word_f1() -> None:
    # a: 4 times, b: 3 times, c, d, e: once; x: never.
    found = word_f1(
        [words(["a b b x", "a a e"]), words(["d b a", "e"])], [words(row) for row in REFERENCES]
    )
    assert [(bucket.name, bucket.size) for bucket in found] == [
        ("1", 2),
        ("3", 2),
        ("4", 3),
    ]
    once, thrice, often = (bucket.scores for bucket in found)
    # The first system is nearest to the first references, the second to "a b d".
    assert once == pytest.approx([200 * 1 / (1 + 2), 100])
    assert thrice == [100, 100]
    assert often == pytest.approx([100, 200 * 1 / (1 + 3)])


def test_sentences() -> None:
    systems = {"good": ["a b b c", "a a e"], "bad": ["a x b c", "e"]}
    scores = SentenceScores(systems, REFERENCES)
    assert scores.gains("good").tolist() == pytest.approx([100, 100])
    (short,) = scores.by_length([4, 3])
    streams = [["a b b c", "a a e"], ["a b d", None]]
    expected = sacrebleu.corpus_bleu(systems["bad"], streams, tokenize="none", force=True).score
    assert (short.name, short.size) == ("0-9", 2)
    assert short.scores == pytest.approx([100, expected])
    apart = scores.by_length([4, 60])
    assert [(bucket.name, bucket.size) for bucket in apart] == [("0-9", 1), ("60 or more", 1)]


def test_extremes() -> None:
    differences = np.array([0.0, 3, -1, 2, 0, -5])
    assert extremes(differences, 2) == ([1, 3], [5, 2])
    assert extremes(differences, 9) == ([1, 3], [5, 2])
    assert extremes(np.zeros(3), 2) == ([], [])


def test_planted_ngrams_are_found() -> None:
    generator = np.random.default_rng(0)
    pool = [f"w{i}" for i in range(30)]
    references = [list(generator.choice(pool, 10)) for _ in range(60)]
    for reference in references[:20]:
        reference[3:5] = ["red", "car"]
    first = [list(reference) for reference in references]
    second = [[{"red": "green"}.get(w, w) for w in reference] for reference in references]
    more, fewer = ngram_differences(first, second, [[r] for r in references], 3)
    assert {(d.words, d.first, d.second) for d in more[:2]} == {("red car", 20, 0), ("red", 20, 0)}
    assert fewer == []
    assert ngram_differences(second, first, [[r] for r in references], 3)[1][:1] == [
        (more[0].words, 0, 20)
    ]


sentences = st.lists(st.sampled_from("abc"), max_size=8)


@given(sentences, sentences)
def test_alignment(first: list[str], second: list[str]) -> None:
    pieces = align(first, second)
    assert [w for piece in pieces for w in piece.first] == first
    assert [w for piece in pieces for w in piece.second] == second
    for piece in pieces:
        assert piece.same == (piece.first == piece.second)
