"""Variants of sentence-level BLEU against sacrebleu, other tools' numbers, and slow references."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from test_metrics import kbest_of, reference, sentence

from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.metrics import (
    BleuPlusOne,
    BleuReferences,
    LiangBleu,
    MosesBleu,
    NakovBleu,
    PhrasalBleu,
    SacreBleu,
)

MOSES_CASE = np.array([[6, 4, 2, 1, 6, 5, 4, 3, 6, 7]])


def gains_of(metric, hypotheses, references):
    """The gains of hypotheses of one sentence."""
    words = Vocabulary()
    return metric.bind([references], words).gains(kbest_of(0, hypotheses, words))


def row_of(m, length, r):
    """Statistics as a row, from matches m_1..m_4."""
    return [*m, *(max(length - n, 0) for n in range(4)), length, r]


# Any statistics that there can be: of n-grams at most one fewer match with each order.
@st.composite
def statistics(draw):
    length = draw(st.integers(0, 8))
    matches, room = [], length
    for n in range(4):
        matches.append(draw(st.integers(0, max(0, min(room, length - n)))))
        room = max(0, matches[-1] - 1)
    return row_of(matches, length, draw(st.integers(0, 9)))


def mean_of(precisions):
    return math.prod(precisions) ** (1 / len(precisions))


def penalty(c, r):
    return math.exp(min(0, 1 - r / c))


@given(
    cases=st.lists(
        st.tuples(st.lists(reference, min_size=1, max_size=3), st.lists(sentence, min_size=1)),
        min_size=1,
        max_size=3,
    ),
    method=st.sampled_from("exp floor floor/0.3 none add-k add-k/0.5 add-k/2".split()),
    effective=st.booleans(),
)
def test_sacrebleu_equals_sacrebleu(cases, method, effective):
    words = Vocabulary()
    name, _, number = method.partition("/")
    value = float(number) if number else None
    metric = SacreBleu(name, value, effective)
    bound = metric.bind([refs for refs, _ in cases], words)
    peer = BLEU(
        smooth_method=name,
        smooth_value=value,
        effective_order=effective,
        tokenize="none",
    )
    for index, (refs, hypotheses) in enumerate(cases):
        gains = bound.gains(kbest_of(index, hypotheses, words))
        for gain, hypothesis in zip(gains, hypotheses, strict=True):
            text = [" ".join(hypothesis)], [[" ".join(r)] for r in refs]
            assert 100 * gain == pytest.approx(peer.corpus_score(*text).score, abs=1e-9)


@given(statistics(), st.booleans(), st.booleans(), st.booleans())
def test_nakov_equals_its_definition(row, unigrams, grounding, short):
    m, h, c, r = row[:4], row[4:8], row[8], row[9]
    orders = min(4, r) if short else 4
    added = [int(unigrams), 1, 1, 1]
    expected = 0.0
    if c > 0 and orders > 0:
        triples = list(zip(m, h, added, strict=True))[:orders]
        expected = mean_of([(m + k) / (h + k) for m, h, k in triples])
        if grounding:
            expected -= mean_of([k / (h + k) for _, h, k in triples])
        expected *= penalty(c, r + 1)
    if grounding and not unigrams:
        with pytest.raises(ValueError, match="smooth_unigrams=true"):
            NakovBleu(unigrams, grounding, short)
        return
    metric = NakovBleu(unigrams, grounding, short)
    assert metric.score(np.array([row]))[0] == pytest.approx(expected, abs=1e-12)


@given(statistics(), st.booleans())
def test_dtrain_counts_fewer_orders_for_short_references(row, fixed):
    """stupid_bleu and fixed_stupid_bleu, which weigh the first r orders by 1/r where r < 4."""
    m, h, c, r = row[:4], row[4:8], row[8], row[9]
    expected = 0.0
    if c > 0 and r > 0 and m[0] > 0:
        orders = min(4, r)
        total = sum(math.log((m[n] + (n > 0)) / (h[n] + (n > 0))) / orders for n in range(orders))
        expected = penalty(c, r + fixed) * math.exp(total)
    metric = NakovBleu(short_references=True) if fixed else BleuPlusOne(short_references=True)
    assert metric.score(np.array([row]))[0] == pytest.approx(expected, abs=1e-12)


@given(statistics())
def test_liang_equals_its_definition(row):
    m, h, c, r = row[:4], row[4:8], row[8], row[9]
    expected = 0.0
    for i in range(1, 5):
        if c > 0 and all(m[:i]):
            bleu = mean_of([m[n] / h[n] for n in range(i)])
            expected += penalty(c, r) * bleu / 2 ** (4 - i + 1)
    assert LiangBleu().score(np.array([row]))[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "expected"), [((1.0,), 0.5985), ((0.5,), 0.5624), ((1.0, True), 0.5067)]
)
def test_moses_equals_its_own_unit_test(arguments, expected):
    assert MosesBleu(*arguments).score(MOSES_CASE)[0] == pytest.approx(expected, rel=1e-4)


@given(statistics(), st.sampled_from([0.1, 1.0, 3.0]), st.booleans())
def test_moses_equals_its_definition(row, s, brevity):
    m, h, c, r = row[:4], row[4:8], row[8], row[9]
    expected = 0.0
    if c > 0:
        expected = mean_of([(m[n] + s) / (h[n] + s) for n in range(4)])
        expected *= penalty(c, r + s * brevity)
    gain = MosesBleu(s, brevity).score(np.array([row]))[0]
    assert gain == pytest.approx(expected, abs=1e-12)


def test_by_hand():
    references = [["a", "b", "c"], ["a", "b", "c", "d", "e"]]
    hypotheses = [["a", "b", "c"], ["a", "x"], []]
    assert gains_of(LiangBleu(), hypotheses, references) == pytest.approx(
        [7 / 16, math.exp(-1 / 2) / 32, 0]
    )
    assert gains_of(NakovBleu(), hypotheses, references) == pytest.approx(
        [math.exp(-1 / 3), math.exp(-1) * (1 / 4) ** 0.25, 0]
    )
    grounded = NakovBleu(smooth_unigrams=True, grounding=True)
    assert gains_of(grounded, [["x", "y"], []], references) == pytest.approx([0, 0], abs=0)
    assert gains_of(PhrasalBleu(), hypotheses, references) == pytest.approx(
        [3, 3 * math.exp(-1 / 2) * (1 / 4) ** 0.25, 0]
    )


def test_phrasal_takes_each_sentences_shortest_reference():
    words = Vocabulary()
    references = [[["a"] * 4, ["a"] * 2], [["b"] * 5], [["c"], ["c", "c"]]]
    bound = PhrasalBleu().bind(references, words)
    for index, (word, length) in enumerate([("a", 2), ("b", 5), ("c", 1)]):
        kbest = kbest_of(index, [[word] * length], words)
        assert bound.gains(kbest) == pytest.approx([length])


def test_phrasal_scales_nakov_too():
    references = [["a", "b", "c"], ["a", "b", "c", "d", "e"]]
    hypotheses = [["a", "b", "c", "x"], ["x"], []]
    gains = gains_of(PhrasalBleu(nakov=True), hypotheses, references)
    plain = gains_of(NakovBleu(smooth_unigrams=True), hypotheses, references)
    assert gains == pytest.approx(3 * plain) and gains[1] > 0


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        (SacreBleu, {"smooth_method": "exp", "smooth_value": 1}, "takes no smooth_value"),
    ],
)
def test_arguments_are_checked(metric, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric(**arguments)


def test_statistics_equal_those_of_moses(shared):
    """Moses's extractor wrote statistics and features of a list; features find the words."""
    moses = shared / "oracles" / "moses"
    references = [[line.split()] for line in read_lines(shared / "data/multi30k-de-en/dev.en")]
    sentences = 150
    found = [{} for _ in range(sentences)]
    for line in read_lines(moses / "dev.100best.default.gz"):
        index, words, features, _ = line.split(" ||| ")
        if int(index) == sentences:
            break
        values = tuple(value for value in features.split() if not value.endswith("="))
        found[int(index)][values] = words.split()
    features = iter(read_lines(moses / "mert" / "run1.features.dat.gz"))
    scores = iter(read_lines(moses / "mert" / "run1.scores.dat.gz"))
    words = Vocabulary()
    counts = BleuReferences(references, words)
    compared = 0
    for index in range(sentences):
        _, number, k, *_ = next(scores).split()
        assert int(number) == index and next(features).startswith(f"FEATURES_TXT_BEGIN_0 {index} ")
        pairs = [(tuple(next(features).split()), next(scores).split()) for _ in range(int(k))]
        assert next(scores).startswith("SCORES_TXT_END") and next(features).startswith("FEATURES")
        pairs = [(found[index][values], row) for values, row in pairs if values in found[index]]
        theirs = np.array([row for _, row in pairs], np.int64)
        ours = counts.statistics(kbest_of(index, [hypothesis for hypothesis, _ in pairs], words))
        assert np.array_equal(ours[:, :4], theirs[:, 0:8:2])
        assert np.array_equal(ours[:, 4:8], theirs[:, 1:8:2])
        assert np.array_equal(ours[:, 9], theirs[:, 8])
        compared += len(pairs)
    assert compared > 9000
