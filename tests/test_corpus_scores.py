"""Corpus scores and sentence statistics against sacrebleu."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.metrics.corpus import (
    METRICS,
    CorpusScore,
    StatisticsExtractor,
    corpus_bleu,
    reference_streams,
    sacrebleu_metric,
)

REFERENCES = [
    ["the cat sat on the mat .", "a cat was sitting on the mat ."],
    ["there is nobody in the house ."],
    ["we would like to pay , please .", "the bill , please .", "can we pay ?"],
]
HYPOTHESES = [
    "the cat is on the mat .",
    "There is no one in the house .",
    "we want to pay , please .",
]


def corpus_scores(**options: bool) -> dict[str, CorpusScore]:
    """Return all scores of the hypotheses above."""
    extractors = {name: StatisticsExtractor(name, REFERENCES, **options) for name in METRICS}
    return {name: e.extract(HYPOTHESES).score for name, e in extractors.items()}


def test_scores_equal_sacrebleu():
    scores = corpus_scores()
    streams = [
        [REFERENCES[0][0], REFERENCES[1][0], REFERENCES[2][0]],
        [REFERENCES[0][1], None, REFERENCES[2][1]],
        [None, None, REFERENCES[2][2]],
    ]
    expected = {
        "bleu": sacrebleu.corpus_bleu(HYPOTHESES, streams, tokenize="none"),
        "chrf": sacrebleu.corpus_chrf(HYPOTHESES, streams),
        "ter": sacrebleu.corpus_ter(HYPOTHESES, streams, case_sensitive=True),
    }
    assert {n: (s.name, s.score) for n, s in scores.items() if n in expected} == {
        n: (s.name, s.score) for n, s in expected.items()
    }
    assert "nrefs:var|case:mixed" in scores["bleu"].signature
    assert "tok:none" in scores["bleu"].signature
    assert str(scores["bleu"]).startswith(f"BLEU {scores['bleu'].score:.2f} (nrefs:var|")


def test_options_change_scores_and_signatures():
    plain = corpus_scores()
    folded = corpus_scores(lowercase=True)
    for name in plain:
        assert folded[name].score != plain[name].score
        assert "case:lc" in folded[name].signature
    tokenised = corpus_bleu(["it's"], [["it 's"]], tokenize="13a")
    assert "tok:13a" in tokenised.signature
    with pytest.raises(ValueError, match="unknown tokenizer 'moses'"):
        corpus_bleu(HYPOTHESES, REFERENCES, tokenize="moses")


def test_lengths_that_differ_are_an_error():
    with pytest.raises(InputError, match="2 hypotheses, and there are references of 3"):
        corpus_bleu(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="no hypotheses"):
        corpus_bleu([], [])
    with pytest.raises(InputError, match="sentence 1 .* has no reference"):
        corpus_bleu(["a", "b"], [["a"], []])


@pytest.mark.parametrize("metric", METRICS[:3])
def test_statistics_are_those_of_the_score(metric):
    options = {"lowercase": True} | ({"tokenize": "13a"} if metric == "bleu" else {})
    extractor = StatisticsExtractor(metric, REFERENCES, **options)
    found = extractor.extract(HYPOTHESES)
    peer = sacrebleu_metric(metric, **options).corpus_score(
        HYPOTHESES, reference_streams(REFERENCES)
    )
    assert (found.score.name, found.score.score) == (peer.name, peer.score)
    assert found.rows.shape[0] == len(HYPOTHESES)
    total = extractor.score_sums(found.rows.sum(axis=0))
    assert total == pytest.approx(found.score.score, rel=1e-12)


def test_unknown_metrics_have_no_statistics():
    with pytest.raises(ValueError, match="unknown metric 'meteor'"):
        StatisticsExtractor("meteor", REFERENCES)


# Many zeros: what is undefined is settled by sacrebleu.
COUNTS = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 10**6))


@pytest.mark.parametrize(("metric", "width"), [("bleu", 10), ("chrf", 18), ("ter", 2)])
@given(data=st.data())
def test_scores_of_sums_equal_sacrebleu(metric, width, data):
    sums = data.draw(st.lists(st.lists(COUNTS, min_size=width, max_size=width), min_size=1))
    if metric == "bleu":
        # There are as many words as unigrams, and no more n-grams match than there are.
        sums = [[*map(min, row[:4], row[4:8]), *row[4:8], row[4], row[9]] for row in sums]
    peer, order = sacrebleu_metric(metric), range(width)
    if metric == "bleu":
        order = [8, 9, *range(8)]
    expected = [peer._compute_score_from_stats([row[i] for i in order]).score for row in sums]
    extractor = StatisticsExtractor(metric, [["a"]])
    found = extractor.score_sums(np.array(sums, np.float64))
    assert found == pytest.approx(np.array(expected), rel=1e-12, abs=1e-12)
    # In any shape.
    folded = extractor.score_sums(np.array([sums], np.float64))
    assert (folded == found[None]).all()
