"""Corpus scores and significance tests against sacrebleu and against plain resampling."""

import os

import numpy as np
import pytest
import sacrebleu

from torchtune_smt.errors import InputError
from torchtune_smt.evaluation import compare
from torchtune_smt.metrics.corpus import corpus_bleu, corpus_scores

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


def test_scores_equal_sacrebleu():
    scores = corpus_scores(HYPOTHESES, REFERENCES)
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
    assert {n: (s.name, s.score) for n, s in scores.items()} == {
        n: (s.name, s.score) for n, s in expected.items()
    }
    assert "nrefs:var|case:mixed" in scores["bleu"].signature
    assert "tok:none" in scores["bleu"].signature
    assert str(scores["bleu"]).startswith(f"BLEU {scores['bleu'].score:.2f} (nrefs:var|")


def test_options_change_scores_and_signatures():
    plain = corpus_scores(HYPOTHESES, REFERENCES)
    folded = corpus_scores(HYPOTHESES, REFERENCES, lowercase=True)
    for name in plain:
        assert folded[name].score != plain[name].score
        assert "case:lc" in folded[name].signature
    tokenised = corpus_bleu(["it's"], [["it 's"]], tokenize="13a")
    assert "tok:13a" in tokenised.signature
    with pytest.raises(ValueError, match="unknown tokenizer 'moses'"):
        corpus_bleu(HYPOTHESES, REFERENCES, tokenize="moses")
    with pytest.raises(ValueError, match="unknown metric 'meteor'"):
        corpus_scores(HYPOTHESES, REFERENCES, ["meteor"])


def test_lengths_that_differ_are_an_error():
    with pytest.raises(InputError, match="2 hypotheses, and there are references of 3"):
        corpus_bleu(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="no hypotheses"):
        corpus_bleu([], [])
    with pytest.raises(InputError, match="sentence 1 .* has no reference"):
        corpus_bleu(["a", "b"], [["a"], []])


def noisy(generator, sentences, rate):
    """Copies of the sentences with words replaced."""
    return [
        " ".join("x" if generator.random() < rate else word for word in sentence.split())
        for sentence in sentences
    ]


@pytest.fixture(scope="module")
def systems():
    generator = np.random.default_rng(0)
    pool = [f"w{i}" for i in range(20)]
    references = [" ".join(generator.choice(pool, 12)) for _ in range(150)]
    return (
        {
            "base": noisy(generator, references, 0.30),
            "better": noisy(generator, references, 0.15),
            "alike": noisy(generator, references, 0.29),
        },
        [[reference] for reference in references],
    )


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_p_values(systems, test):
    results = compare(*systems, test=test, metrics=["bleu", "chrf"], samples=500)
    assert [(r.metric, r.system, r.baseline) for r in results] == [
        ("BLEU", "better", "base"),
        ("BLEU", "alike", "base"),
        ("chrF2", "better", "base"),
        ("chrF2", "alike", "base"),
    ]
    for better, alike in (results[:2], results[2:]):
        assert better.p_value < 0.01 < 0.05 < alike.p_value
        assert better.score > better.baseline_score
    assert "seed:12345" in results[0].signature
    assert results[0].score == corpus_bleu(systems[0]["better"], systems[1]).score
    assert "better against base: BLEU" in str(results[0])
    assert results == compare(*systems, test=test, metrics=["bleu", "chrf"], samples=500)


def test_seed_and_samples_matter(systems, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    one = compare(*systems, samples=200, seed=1)
    assert one != compare(*systems, samples=200, seed=2)
    assert one != compare(*systems, samples=300, seed=1)
    assert os.environ["SACREBLEU_SEED"] == "7"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"test": "t"}, "test"), ({"seed": 0}, "seed"), ({"samples": -1}, "samples")],
)
def test_arguments_of_compare_are_checked(systems, arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(*systems, **arguments)


def test_systems_are_checked(systems):
    hypotheses, references = systems
    with pytest.raises(ValueError, match="two systems"):
        compare({"base": hypotheses["base"]}, references)
    with pytest.raises(InputError, match="short has 149 hypotheses"):
        compare({"base": hypotheses["base"], "short": hypotheses["base"][:-1]}, references)
