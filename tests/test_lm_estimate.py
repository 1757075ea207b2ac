"""Kneser-Ney estimation: against lmplz and against the definition; models of folds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lm_reference import kneser_ney, to_dict

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.lm import (
    DISCOUNT_FALLBACK,
    NgramModel,
    Ngrams,
    build_folds,
    estimate,
    load_folds,
    read_arpa,
    write_arpa,
)
from torchtune_smt.lm.folds import fold_of

# The bigrams' first discount is 0 here, so that "d" leaves nothing to back-off.
NO_BACKOFF = [list("abbbed"), list("bebeb"), list("becbbd")]
corpora = st.lists(st.lists(st.sampled_from("abcde"), max_size=8), min_size=1, max_size=12)


def in_order(ngrams: Ngrams, ids: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Rows, probabilities and back-offs of each order, sorted, words replaced by `ids`."""
    result = []
    for rows, prob, backoff in zip(ngrams.rows, ngrams.prob, ngrams.backoff, strict=True):
        order = np.lexsort(ids[rows].T)
        result.append((ids[rows][order], prob[order], backoff[order]))
    return result


def test_numbers_are_those_of_lmplz(shared: Path, tmp_path: Path) -> None:
    oracle = read_arpa(shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz")
    text = read_lines(shared / "data" / "multi30k-de-en" / "train.en.gz")
    own = estimate([line.split() for line in text])
    write_arpa(tmp_path / "own.arpa", own)
    ids = oracle.words.lookup(own.words.names(range(len(own.words))))
    assert len(own.words) == len(oracle.words)
    expected = in_order(oracle, np.arange(len(oracle.words)))
    # As estimated, and as written and read again; the words stand in one order in both.
    for ngrams in (own, read_arpa(tmp_path / "own.arpa")):
        for (rows, prob, backoff), (e_rows, e_prob, e_backoff) in zip(
            in_order(ngrams, ids), expected, strict=True
        ):
            np.testing.assert_array_equal(rows, e_rows)
            np.testing.assert_allclose(prob, e_prob, rtol=0, atol=1e-6)
            np.testing.assert_allclose(backoff, e_backoff, rtol=0, atol=1e-6)


@given(corpora, st.integers(1, 5))
@example(NO_BACKOFF, 4)
@settings(max_examples=80)
def test_numbers_are_those_of_the_definition(sentences: list[list[str]], order: int) -> None:
    ngrams = estimate(sentences, order, DISCOUNT_FALLBACK)
    # Also where nothing is left to back off.
    assert all(np.isfinite(values).all() for values in (*ngrams.prob, *ngrams.backoff))
    own = to_dict(ngrams)
    expected = kneser_ney(sentences, order, DISCOUNT_FALLBACK)
    for got, want in ((own.prob, expected.prob), (own.backoff, expected.backoff)):
        # An order that no sentence is long enough for has no n-grams.
        assert got.keys() == want.keys()
        for ngram, value in want.items():
            assert got[ngram] == pytest.approx(value, abs=1e-6)


@given(corpora, st.integers(1, 4))
@example(NO_BACKOFF, 4)
@settings(max_examples=30)
def test_probabilities_sum_to_one_after_any_context(sentences: list[list[str]], order: int) -> None:
    model = NgramModel.from_ngrams(estimate(sentences, order, DISCOUNT_FALLBACK))
    words = [w for w in model.words.names(range(len(model.words))) if w != "<s>"]
    for context in (["a"], ["a", "b"], ["e", "e", "a"], ["new"], sentences[0]):
        before = model.score(context, eos=False)[0]
        total = sum(10 ** (model.score([*context, w], eos=False)[0] - before) for w in words)
        assert total == pytest.approx(1.0, abs=1e-5)


def test_discounts_of_small_data_need_a_fallback() -> None:
    sentences = [["a", "b"], ["b", "a"]]
    with pytest.raises(InputError, match="discounts of 1-grams .* give discount_fallback"):
        estimate(sentences, 2)
    low = estimate(sentences, 2, (0.1, 0.1, 0.1))
    high = estimate(sentences, 2, (0.9, 0.9, 0.9))
    assert low.prob[1].max() > high.prob[1].max()


@pytest.mark.parametrize("word", ["<s>", "</s>", "<unk>", "<UNK>", "", "a b", "a\t"])
def test_words_that_arpa_cannot_hold_are_errors(word: str, tmp_path: Path) -> None:
    sentences = [["a"], ["b", "a"], [], ["a", word, "b"], [word]]
    options = {"discount_fallback": DISCOUNT_FALLBACK, "path": "train.en"}
    for make in (estimate, partial(build_folds, tmp_path, n_folds=2)):
        with pytest.raises(InputError, match="cannot be a word of a language model") as caught:
            make(sentences=sentences, order=2, **options)
        assert (caught.value.path, caught.value.line) == ("train.en", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "no sentences"),
        (([["a"]], 0), "order must be .*up to 6.*, not 0"),
        (([["a"]], 7), "order must be .*up to 6.*, not 7"),
        *(
            (([["a"]], 2, fallback), "discount_fallback")
            for fallback in ((0.0, 1.0, 1.5), (1.5, 1.0, 1.5), (0.5, 1.0, -1.0))
        ),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(*arguments)


TEXT = """\
the dog sees the cat
the cat sees a bird
a bird sings
the dog sleeps
a zebra sleeps
the cat sleeps
the bird sees the dog
"""
SENTENCES = [line.split() for line in TEXT.splitlines()]


def test_fold_models_have_not_seen_their_fold(tmp_path: Path) -> None:
    build_folds(tmp_path, SENTENCES, 3, 3, DISCOUNT_FALLBACK)
    folds = load_folds(tmp_path)
    assert len(folds) == 3
    for i, words in enumerate(SENTENCES):
        assert fold_of(i, 3) == i % 3
        others = [other for k, other in enumerate(SENTENCES) if k % 3 != i % 3]
        expected = NgramModel.from_ngrams(estimate(others, 3, DISCOUNT_FALLBACK)).score(words)
        total, unknown = folds[i % 3].score(words)
        assert total == pytest.approx(expected[0], abs=1e-5)
        assert unknown == expected[1]
    # "zebra" occurs in sentence 4 only.
    assert "zebra" not in folds[1].words
    assert "zebra" in folds[2].words


def test_fold_errors(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(InputError, match=message):
            load_folds(tmp_path)

    for n_folds, message in ((1, "n_folds must be"), (8, "7 sentences are too few for 8 folds")):
        with pytest.raises(ValueError, match=message):
            build_folds(tmp_path, SENTENCES, n_folds)
    refused("no whole set of fold models")
    build_folds(tmp_path, SENTENCES, 2, 2, DISCOUNT_FALLBACK)
    # A build that breaks off leaves nothing that could be taken for whole.
    with pytest.raises(InputError, match="discounts"):
        build_folds(tmp_path, SENTENCES, 3, 2)
    refused("no whole set of fold models")
    for text, message in (("[]", "is damaged"), ('{"n_folds": 3, "version": 0}', "version 0")):
        (tmp_path / "folds.json").write_text(text)
        refused(message)


def test_other_fold_models_are_refused(tmp_path: Path) -> None:
    digest = build_folds(tmp_path, SENTENCES, 3, 3, DISCOUNT_FALLBACK)
    assert len(load_folds(tmp_path, expected=digest)) == 3
    build_folds(tmp_path / "other", SENTENCES[1:], 3, 3, DISCOUNT_FALLBACK)
    with pytest.raises(InputError, match="folds.json: is of another model; remove the model's"):
        load_folds(tmp_path / "other", expected=digest)
    # One model of them, in the place of another.
    fold = tmp_path / "fold-1.arpa.gz"
    fold.write_bytes((tmp_path / "fold-2.arpa.gz").read_bytes())
    with pytest.raises(InputError, match="fold-1.arpa.gz: is damaged or another file"):
        load_folds(tmp_path)
