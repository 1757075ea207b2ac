"""Gains and corpus scores against sacrebleu."""

from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics import (
    BleuPlusOne,
    BleuReferences,
    ExternalScores,
    PhrasalBleu,
    bind_metric,
    with_gains,
)


def kbest_of(index, hypotheses, words):
    """A k-best list that has tokens only."""
    k = len(hypotheses)
    return KBest(
        index=index,
        rows=Rows(np.zeros(k + 1, np.int64), np.zeros(0, np.int32), np.zeros(0)),
        token_begin=np.cumsum([0, *map(len, hypotheses)]).astype(np.int64),
        tokens=words.intern([w for h in hypotheses for w in h]),
    )


# Few different words, so that n-grams repeat and clipping matters.
sentence = st.lists(st.sampled_from("abcd"), max_size=9)
reference = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(
    st.lists(
        st.tuples(
            st.lists(reference, min_size=1, max_size=4),
            st.lists(sentence, min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_statistics_and_gains_equal_sacrebleu(cases):
    words = Vocabulary()
    references = [refs for refs, _ in cases]
    counts = BleuReferences(references, words)
    bound = BleuPlusOne().bind(references, words)
    plain = BLEU(smooth_method="none", tokenize="none")
    add_one = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none")
    for index, (refs, hypotheses) in enumerate(cases):
        kbest = kbest_of(index, hypotheses, words)
        statistics = counts.statistics(kbest)
        gains = bound.gains(kbest)
        for h, hypothesis in enumerate(hypotheses):
            strings = [" ".join(hypothesis)], [[" ".join(r)] for r in refs]
            score = plain.corpus_score(*strings)
            assert list(statistics[h, :4]) == score.counts
            assert list(statistics[h, 4:8]) == score.totals
            assert statistics[h, 8] == score.sys_len == len(hypothesis)
            assert statistics[h, 9] == score.ref_len
            assert gains[h] == pytest.approx(add_one.corpus_score(*strings).score / 100, abs=1e-12)


def test_short_hypotheses_by_hand():
    words = Vocabulary()
    bound = BleuPlusOne().bind([[["a", "b", "c"]]], words)
    kbest = kbest_of(0, [["a", "b", "c"], ["a"], ["x", "y"], []], words)
    assert bound.gains(kbest) == pytest.approx([1.0, np.exp(1 - 3), 0.0, 0.0], abs=1e-15)


def test_long_sentences():
    generator = np.random.default_rng(5)
    pool = [f"w{i}" for i in range(30)]
    references = [[list(generator.choice(pool, n)) for n in (300, 280)]]
    hypotheses = [list(generator.choice(pool, n)) for n in (290, 250, 310)]
    words = Vocabulary()
    gains = BleuPlusOne().bind(references, words).gains(kbest_of(0, hypotheses, words))
    for gain, hypothesis in zip(gains, hypotheses, strict=True):
        expected = sacrebleu.sentence_bleu(
            " ".join(hypothesis),
            [" ".join(r) for r in references[0]],
            smooth_method="add-k",
            smooth_value=1,
            tokenize="none",
        )
        assert gain == pytest.approx(expected.score / 100, abs=1e-12)


def test_a_word_of_the_references_may_come_later():
    words = Vocabulary(["the"])
    bound = BleuPlusOne().bind([[["the", "Hindenburg"]]], words)
    words.intern(["something", "else"])
    assert bound.gains(kbest_of(0, [["the", "Hindenburg"]], words)) == [1.0]


@pytest.mark.parametrize("metric", [BleuPlusOne(), PhrasalBleu()])
def test_lists_bring_their_statistics(metric):
    """Where they do, words are not asked."""
    words = Vocabulary()
    references = [[["a", "b", "c"], ["a", "c"]], [["b"]]]
    kbests = [kbest_of(1, [["b"], ["a"]], words), kbest_of(0, [["a", "b"], []], words)]
    lists = KBestLists.of(kbests)
    bound = bind_metric(metric, references, words)
    counted = BleuReferences(references, words).with_statistics(lists)
    assert counted.statistics.dtype == np.int32 and counted.statistics.shape == (4, 10)
    assert BleuReferences([], words).with_statistics(counted) is counted
    without_words = replace(counted, tokens=None, token_begin=None)
    gains = with_gains(bound, lists).gain.tolist()
    assert with_gains(bound, without_words).gain.tolist() == gains
    if metric == BleuPlusOne():
        none = bind_metric(metric, [[], []], words)
        assert with_gains(none, without_words).gain.tolist() == gains
    else:
        with pytest.raises(InputError, match="PhrasalBleu needs the words of the hypotheses"):
            bind_metric(metric, [[], []], words)


@pytest.mark.parametrize("metric", ["bleu", "phrasal", "external"])
def test_a_part_of_a_set_has_the_gains_of_the_whole(metric, tmp_path):
    words = Vocabulary()
    references = [[["a", "b"], ["c"]], [["b", "a", "d"]], [["d", "d"]], [["a"]]]
    hypotheses = [["a", "b"], ["b", "a"], ["d"]]
    if metric == "external":
        lines = [f"{i} ||| {' '.join(h)} ||| {i + len(h)}" for i in range(4) for h in hypotheses]
        (tmp_path / "scores").write_text("\n".join(lines) + "\n")
        metric = ExternalScores(tmp_path / "scores")
    else:
        metric = BleuPlusOne() if metric == "bleu" else PhrasalBleu()
    whole = Sentences.of([["x"]] * 4, references)
    assert whole.numbered_references() == references
    part = whole.part([1, 2, 3]).part([0, 2])
    assert [source.index for source in part.sources] == [1, 3]
    bound, bound_part = (
        bind_metric(metric, some.numbered_references(), words) for some in (whole, part)
    )
    for i in (1, 3):
        kbest = kbest_of(i, hypotheses, words)
        assert bound_part.gains(kbest).tolist() == bound.gains(kbest).tolist()
    # Lists with statistics need no references.
    assert Sentences.of([["x"]] * 2, [[], []]).part([1]).numbered_references() == [[]]


@pytest.mark.parametrize("references", [[[["a"]], []], [[["a"]], [[]]]])
def test_missing_references_are_named(references):
    with pytest.raises(InputError, match="sentence 1 "):
        BleuPlusOne().bind(references, Vocabulary())


def test_one_empty_reference_among_several_is_allowed():
    words = Vocabulary()
    bound = BleuPlusOne().bind([[[], ["a", "b"]]], words)
    assert bound.gains(kbest_of(0, [["a", "b"]], words)) == [1.0]


def test_a_sentence_beyond_the_references():
    words = Vocabulary()
    bound = BleuPlusOne().bind([[["a"]]], words)
    with pytest.raises(InputError, match="sentence 1 .*there are 1"):
        bound.gains(kbest_of(1, [["a"]], words))


def test_summed_statistics_are_those_of_corpus_bleu():
    generator = np.random.default_rng(1)
    references = [[list(generator.choice(list("abcdef"), 8))] for _ in range(40)]
    hypotheses = [list(generator.choice(list("abcdef"), 7)) for _ in references]
    words = Vocabulary()
    counts = BleuReferences(references, words)
    total = sum(
        counts.statistics(kbest_of(i, [hypothesis], words))[0]
        for i, hypothesis in enumerate(hypotheses)
    )
    expected = BLEU(tokenize="none").corpus_score(
        [" ".join(h) for h in hypotheses], [[" ".join(r[0]) for r in references]]
    )
    assert list(total[:4]) == expected.counts and list(total[4:8]) == expected.totals
    assert (total[8], total[9]) == (expected.sys_len, expected.ref_len)
