"""Metrics against sacrebleu, other tools' numbers, plain definitions, and published errors."""

import logging
import math
import re
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
from commands import run_command
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from small_lists import ON_LISTS, edits, kbest_of, put

from torchtune_smt import KBestLists, KBestMira, measured, tune
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.sentences import FileNumbers, Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics import (
    BleuPlusOne,
    BleuReferences,
    CharacterErrorRate,
    ChrF,
    ExternalScores,
    LiangBleu,
    MetricMix,
    MosesBleu,
    NakovBleu,
    PhrasalBleu,
    SacreBleu,
    TranslationEditRate,
    WordErrorRate,
    bind_metric,
    with_gains,
)
from torchtune_smt.metrics.base import Judge
from torchtune_smt.metrics.corpus import (
    METRICS,
    StatisticsExtractor,
    corpus_bleu,
    reference_streams,
    sacrebleu_metric,
)

# Few different words, so that n-grams repeat and clipping matters.
sentence = st.lists(st.sampled_from("abcd"), max_size=9)
reference = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


def gains_of(metric, hypotheses, references):
    words = Vocabulary()
    return metric.bind([references], words).gains(kbest_of(0, hypotheses, words))


def check_bleu(cases, metric, peer):
    words, plain = Vocabulary(), BLEU(smooth_method="none", tokenize="none")
    references = [refs for refs, _ in cases]
    counts, bound = BleuReferences(references, words), metric.bind(references, words)
    for index, (refs, hypotheses) in enumerate(cases):
        kbest = kbest_of(index, hypotheses, words)
        rows, gains = counts.statistics(kbest), bound.gains(kbest)
        for row, gain, hypothesis in zip(rows.tolist(), gains, hypotheses, strict=True):
            strings = [" ".join(hypothesis)], [[" ".join(r)] for r in refs]
            score = plain.corpus_score(*strings)
            assert row == [*score.counts, *score.totals, score.sys_len, score.ref_len]
            assert 100 * gain == pytest.approx(peer.corpus_score(*strings).score, abs=1e-9)


CASES = st.lists(
    st.tuples(
        st.lists(reference, min_size=1, max_size=4),
        st.lists(sentence, min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("method", "+1 exp floor floor/0.3 none add-k add-k/0.5 add-k/2".split())
@settings(max_examples=40)
@given(cases=CASES, effective=st.booleans())
@example([([["a", "b"]], [["a", "c", "c", "c", "c"]])], True)
def test_statistics_and_gains_are_sacrebleus(method, cases, effective):
    name, _, number = ("add-k/1" if method == "+1" else method).partition("/")
    value, effective = float(number) if number else None, effective and method != "+1"
    own = BleuPlusOne() if method == "+1" else SacreBleu(name, value, effective)
    options = {"smooth_method": name, "smooth_value": value, "effective_order": effective}
    check_bleu(cases, own, BLEU(**options, tokenize="none"))


def test_long_sentences():
    generator = np.random.default_rng(5)
    drawn = [generator.choice([f"w{i}" for i in range(30)], n).tolist() for n in (300, 280, 290)]
    peer = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none")
    check_bleu([(drawn[:2], [*drawn, drawn[0][:250]])], BleuPlusOne(), peer)


# Any statistics that there can be: of n-grams at most one fewer match with each order.
@st.composite
def statistics(draw):
    length = draw(st.integers(0, 8))
    matches, room = [], length
    for n in range(4):
        matches.append(draw(st.integers(0, max(0, min(room, length - n)))))
        room = max(0, matches[-1] - 1)
    return [*matches, *(max(length - n, 0) for n in range(4)), length, draw(st.integers(0, 9))]


def mean_of(precisions):
    return math.prod(precisions) ** (1 / len(precisions))


def penalty(c, r):
    return math.exp(min(0, 1 - r / c))


@given(statistics(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.1, 1.0, 3.0]))
def test_variants_equal_their_definitions(row, unigrams, grounding, short, s):
    m, h, c, r = row[:4], row[4:8], row[8], row[9]

    def check(metric, expected):
        assert metric.score(np.array([row]))[0] == pytest.approx(expected, abs=1e-12)

    def smoothed(added, orders=4):
        return mean_of([(a + k) / (b + k) for a, b, k in zip(m, h, added, strict=True)][:orders])

    orders = min(4, r) if short else 4
    nakov = liang = 0.0
    if c > 0 and orders > 0:
        added = [int(unigrams), 1, 1, 1]
        nakov = smoothed(added, orders)
        if grounding:
            nothing = [k / (b + k) for b, k in zip(h, added, strict=True)]
            nakov -= mean_of(nothing[:orders])
        nakov *= penalty(c, r + 1)
    if unigrams or not grounding:
        check(NakovBleu(unigrams, grounding, short), nakov)
    else:
        with pytest.raises(ValueError, match="smooth_unigrams=true"):
            NakovBleu(unigrams, grounding, short)
    for i in range(1, 5):
        if c > 0 and all(m[:i]):
            bleu = mean_of([m[n] / h[n] for n in range(i)])
            liang += penalty(c, r) * bleu / 2 ** (4 - i + 1)
    check(LiangBleu(), liang)
    check(MosesBleu(s, short), smoothed([s] * 4) * penalty(c, r + s * short) if c > 0 else 0.0)
    # stupid_bleu and fixed_stupid_bleu of dtrain weigh the first r orders by 1/r where r < 4.
    for metric, more in (
        (BleuPlusOne(short_references=True), 0),
        (NakovBleu(short_references=True), 1),
    ):
        fewer = 0.0
        if c > 0 and r > 0 and m[0] > 0:
            fewer = penalty(c, r + more) * smoothed([0, 1, 1, 1], min(4, r))
        check(metric, fewer)


def test_moses_equals_its_own_unit_test():
    row = np.array([[6, 4, 2, 1, 6, 5, 4, 3, 6, 7]])
    for arguments, expected in (((1.0,), 0.5985), ((0.5,), 0.5624), ((1.0, True), 0.5067)):
        assert MosesBleu(*arguments).score(row)[0] == pytest.approx(expected, rel=1e-4)


def test_phrasal_scales_by_each_sentences_shortest_reference():
    references = [["a", "b", "c"], ["a", "b", "c", "d", "e"]]
    hypotheses = [["a", "b", "c"], ["a", "x"], ["x"], []]
    gains = gains_of(PhrasalBleu(), hypotheses, references)
    assert gains[[0, 1, 3]] == pytest.approx([3, 3 * math.exp(-1 / 2) * (1 / 4) ** 0.25, 0])
    gains = gains_of(PhrasalBleu(nakov=True), hypotheses, references)
    plain = gains_of(NakovBleu(smooth_unigrams=True), hypotheses, references)
    assert gains == pytest.approx(3 * plain) and gains[1] > 0
    words = Vocabulary()
    bound = PhrasalBleu().bind([[["a"] * 4, ["a"] * 2], [["b"] * 5]], words)
    for index, (word, length) in enumerate([("a", 2), ("b", 5)]):
        assert bound.gains(kbest_of(index, [[word] * length], words)) == pytest.approx([length])


def test_statistics_equal_those_of_moses(shared):
    """Moses's extractor wrote statistics and features of a list; features find the words."""
    moses, sentences = shared / "oracles" / "moses", 150
    references = [[line.split()] for line in read_lines(shared / "data/multi30k-de-en/dev.en")]
    found = [{} for _ in range(sentences)]
    for line in read_lines(moses / "dev.100best.default.gz"):
        index, words, features, _ = line.split(" ||| ")
        if int(index) == sentences:
            break
        values = tuple(value for value in features.split() if not value.endswith("="))
        found[int(index)][values] = words.split()
    features = iter(read_lines(moses / "mert" / "run1.features.dat.gz"))
    scores = iter(read_lines(moses / "mert" / "run1.scores.dat.gz"))
    words, compared = Vocabulary(), 0
    counts = BleuReferences(references, words)
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


def test_references_that_are_there_and_that_are_not():
    # Words of a reference may come later, and one of several may be empty.
    words = Vocabulary(["the"])
    bound = BleuPlusOne().bind([[[], ["the", "Hindenburg"]]], words)
    words.intern(["something", "else"])
    assert bound.gains(kbest_of(0, [["the", "Hindenburg"]], words)) == [1.0]
    with pytest.raises(InputError, match="sentence 1 .*there are 1"):
        bound.gains(kbest_of(1, [["a"]], words))
    for references in ([[["a"]], []], [[["a"]], [[]]]):
        with pytest.raises(InputError, match="sentence 1 "):
            BleuPlusOne().bind(references, Vocabulary())


def test_lists_bring_their_statistics():
    """Where they do, words are not asked."""
    words = Vocabulary()
    references = [[["a", "b", "c"], ["a", "c"]], [["b"]]]
    kbests = [kbest_of(1, [["b"], ["a"]], words), kbest_of(0, [["a", "b"], []], words)]
    lists = KBestLists.of(kbests)
    counted = BleuReferences(references, words).with_statistics(lists)
    assert counted.statistics.dtype == np.int32 and counted.statistics.shape == (4, 10)
    assert BleuReferences([], words).with_statistics(counted) is counted
    without_words = replace(counted, tokens=None, token_begin=None)
    none = bind_metric(BleuPlusOne(), [[], []], words)
    for metric, bound in ((BleuPlusOne(), none), (PhrasalBleu(), None)):
        own = bind_metric(metric, references, words)
        gains = with_gains(own, lists).gain.tolist()
        assert with_gains(bound or own, without_words).gain.tolist() == gains
    with pytest.raises(InputError, match="PhrasalBleu needs the words of the hypotheses"):
        bind_metric(PhrasalBleu(), [[], []], words)


@pytest.mark.parametrize("metric", ["bleu", "phrasal", "external"])
def test_a_part_of_a_set_has_the_gains_of_the_whole(metric, tmp_path):
    words, hypotheses = Vocabulary(), [["a", "b"], ["b", "a"], ["d"]]
    references = [[["a", "b"], ["c"]], [["b", "a", "d"]], [["d", "d"]], [["a"]]]
    lines = [f"{i} ||| {' '.join(h)} ||| {i + len(h)}" for i in range(4) for h in hypotheses]
    external = ExternalScores(put(tmp_path, {"scores": lines}))
    metric = {"bleu": BleuPlusOne(), "phrasal": PhrasalBleu()}.get(metric, external)
    whole = Sentences.of([["x"]] * 4, references)
    assert whole.numbered_references() == references
    part = whole.part([1, 2, 3]).part([0, 2])
    assert [source.index for source in part.sources] == [1, 3]
    gains = [
        [bound.gains(kbest_of(i, hypotheses, words)).tolist() for i in (1, 3)]
        for some in (whole, part)
        for bound in [bind_metric(metric, some.numbered_references(), words)]
    ]
    assert gains[0] == gains[1]
    # Lists with statistics need no references.
    assert Sentences.of([["x"]] * 2, [[], []]).part([1]).numbered_references() == [[]]


@pytest.mark.parametrize(
    "references",
    [["a b"], [["a b"]], [["a", "b"]], [[["a b"]]], [[[""]]], [], [[["a"]]] * 2],
)
def test_references_of_another_shape(references):
    good = [[["a"]]] * 11
    with pytest.raises(ValueError, match="references"):
        measured(KBestLists.of_strings([["a", "b"]] * 12), [*good, *references])


words_of_any = st.lists(st.sampled_from("a bb c dd é 猫".split()), max_size=6)
several = st.lists(words_of_any, min_size=1, max_size=3)
corpora = st.lists(st.tuples(several, several), min_size=1, max_size=3)


def of_strings(corpus):
    return KBestLists.of_strings([[" ".join(h) for h in lists] for lists, _ in corpus])


@pytest.mark.parametrize("metric", [WordErrorRate(), CharacterErrorRate()])
@given(corpus=corpora)
def test_errors(metric, corpus):
    found = measured(of_strings(corpus), [references for _, references in corpus], metric)
    units = (lambda one: one) if isinstance(metric, WordErrorRate) else " ".join
    expected = [
        [min(edits(units(h), units(r)) for r in refs), np.mean([len(units(r)) for r in refs])]
        for lists, refs in corpus
        for h in lists
    ]
    assert found.statistics.tolist() == expected
    assert found.gain.tolist() == [-errors for errors, _ in expected]
    errors, length = np.sum(expected, axis=0)
    rate = errors / length if length else min(errors, 1)
    assert found.measure.scores(found.statistics.sum(axis=0)) == pytest.approx(-rate)


PEERS = {
    "chrf": (ChrF(), CHRF()),
    "of others": (ChrF(order=3, beta=1), CHRF(char_order=3, beta=1)),
    "ter": (TranslationEditRate(), TER(case_sensitive=True)),
}


def check_peer(name, corpus):
    metric, peer = PEERS[name]
    found = measured(of_strings(corpus), [references for _, references in corpus], metric)
    rows = []
    for lists, references in corpus:
        prepared = peer._extract_reference_info([" ".join(one) for one in references])
        rows += [peer._compute_segment_statistics(" ".join(one), prepared) for one in lists]
    assert np.array_equal(found.statistics, np.array(rows, float))
    score = 100 * abs(metric.measure.scores(np.sum(rows, axis=0)))
    assert score == pytest.approx(peer._aggregate_and_compute(rows).score, abs=1e-9)


@pytest.mark.parametrize("name", PEERS)
@given(corpus=corpora)
def test_statistics_are_sacrebleus(name, corpus):
    check_peer(name, corpus)


def noisy(generator, words):
    """Return words some of which are others, and of which blocks are elsewhere."""
    words = list(words)
    for _ in range(generator.integers(4)):
        a = generator.integers(len(words) + 1)
        block, words = words[a : a + 4], words[:a] + words[a + 4 :]
        b = generator.integers(len(words) + 1)
        words[b:b] = block
    return [w if generator.random() > 0.1 else "x" for w in words]


@pytest.mark.parametrize("name", PEERS)
def test_statistics_of_longer_sentences_are_sacrebleus(name):
    generator, corpus = np.random.default_rng(3), []
    for length in (1, 3, 8, 20, 25, 30, 60):
        references = [[f"w{w}" for w in generator.integers(40, size=n)] for n in (length, 12)]
        lists = [noisy(generator, references[i % 2]) for i in range(4)]
        corpus.append(([*lists, [], ["w1"], references[1] * 4], references))
    check_peer(name, corpus)


def test_a_mix_is_the_sum_of_its_parts(tmp_path):
    corpus = [([["a", "b"], ["c"], []], [["a", "c"]])]
    path = put(tmp_path, {"comet.txt": "0 ||| a b ||| 0.7\n0 ||| c ||| -1.5\n0 |||  ||| 2\n"})
    references = [references for _, references in corpus]
    metric = MetricMix({"bleu": 2, "external": 1, "wer": 0.5, "chrf": 1}, str(path))
    lists = of_strings(corpus)
    found = measured(lists, references, metric)
    sums = found.statistics.sum(axis=0)
    parts = {"bleu": BleuPlusOne(), "wer": WordErrorRate(), "chrf": ChrF()}
    alone = {name: measured(lists, references, part) for name, part in parts.items()}
    score = {name: part.measure.scores(part.statistics.sum(axis=0)) for name, part in alone.items()}
    expected = 2 * score["bleu"] + 0.5 * score["wer"] + score["chrf"] + (0.7 - 1.5 + 2) / 3
    assert found.measure.scores(sums) == pytest.approx(expected)
    errors = alone["wer"].gain / 2
    gains = 2 * alone["bleu"].gain + [0.7, -1.5, 2] + 0.5 * errors + alone["chrf"].gain
    assert found.gain == pytest.approx(gains)
    assert found.measure.name == "mix(2 BLEU, external, 0.5 WER, chrF2)"
    # Read as of the sentences of files.
    bound = bind_metric(metric, [*[[[]]] * 5, [["a", "c"]]], lists.words, FileNumbers({5: 0}, 1))
    elsewhere = replace(lists, index=np.array([5]))
    assert Judge(bound, metric.measure).judged(elsewhere).gain == pytest.approx(gains)
    for weights in ({}, {"x": 1}, {"external": 1}):
        with pytest.raises(ValueError, match="weights"):
            MetricMix(weights)


@pytest.mark.parametrize(
    ("filters", "line", "left"),
    [
        (["bpe"], "the c@@ a@@ t s@@", "the cat s"),
        (["bpe"], "▁the ▁c at ▁ ▁s", "the cat s"),
        (["unk", "lowercase"], "The <unk> cat <UNK>", "the cat"),
        (["detokenize"], "it 's here , now .", "it's here, now."),
        (["bpe", "detokenize", "lowercase"], "He@@ llo , world", "hello, world"),
    ],
)
def test_filters_are_of_the_metric_alone(filters, line, left):
    lists, metric = KBestLists.of_strings([[line, "x"]]), WordErrorRate(filters=filters)
    for one in (line, left):
        found = measured(lists, [[one.split()]], metric)
        assert found.gain[0] == 0 > found.gain[1]
        assert found.statistics[0, 1] == len(left.split())
        assert found[0].text(0) == line
    with pytest.raises(ValueError, match="filters"):
        WordErrorRate(filters=["stem"])


def test_lists_of_any_metric_are_kept(tmp_path):
    corpus = [([["a"], ["b", "c"]], [["a"], ["b", "a"]])]
    found = measured(of_strings(corpus), [corpus[0][1]], WordErrorRate())
    store = ListStore(folder=tmp_path, measure=found.measure)
    store.add(found)
    store.end_iteration()
    kept = ListStore.open(tmp_path, n_dense=0, measure=found.measure).lists()
    assert kept.measure == found.measure
    assert kept.statistics.tolist() == found.statistics.tolist() == [[0, 1.5], [1, 1.5]]


@pytest.mark.parametrize(
    ("name", "errors"), [("dev_clean", 925), ("dev_other", 1840), ("test_clean", 949)]
)
def test_errors_of_a_recogniser_are_as_published(shared, name, errors):
    with tarfile.open(shared / "data" / "librispeech-nbest" / f"{name}.tar.xz") as archive:

        def read(member):
            lines = archive.extractfile(f"{name}/{member}").read().decode().splitlines()
            return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}

        references, first = read("text"), read("logdir/output.1/1best_recog/text")
    lists = KBestLists.of_strings([[first[key]] for key in references])
    found = measured(lists, [[line.split()] for line in references.values()], WordErrorRate())
    assert found.statistics[:, 0].sum() == errors == -found.gain.sum()


class Length:
    """A metric of one's own: shorter is better; its corpus form is the mean of its sentences."""

    def bind(self, references, words):
        return self

    def gains(self, kbest):
        return np.array([-float(kbest.hypothesis(h).size) for h in range(len(kbest))])


def test_mira_takes_the_corpus_score_of_the_metric():
    good = [f"the dog sees a cat near our old house {i}" for i in range(12)]
    texts = [[text, f"one pets {i} friendly dogs"] for i, text in enumerate(good)]
    features = [[{"a": 1.0 + i % 3}, {"b": 1.0 + i % 2}] for i in range(12)]
    lists, references = KBestLists.of_strings(texts, features), [[text.split()] for text in good]
    for metric, better in ((None, "a"), (Length(), "b")):
        found = tune(measured(lists, references, metric), KBestMira(C=1)).to_dict()
        assert max(found, key=found.get) == better


# The tuner and the metric; its name, its score of the start, and the best that there is.
RUNS = {
    "mert external": ("comet", "0.2000", "0.7000"),
    "online external": ("comet", "0.2000", "0.7000"),
    "mert wer": ("WER", "33.333", "0.000"),
    "pro mix": ("mix(BLEU, WER)", "", "100.00"),
}


@pytest.mark.parametrize("names", RUNS)
def test_what_is_tuned_decides(names, tmp_path):
    """The start prefers the first of each list, and the metric the second; to BLEU, comet errs."""
    tuner, metric = names.split()
    texts = ["the do@@ g {} sees cats", "the do@@ g {} sees a cat"]
    if metric == "external":
        texts = ["the dog {} sees a cat", "one pets {} dogs"]
    lists, scores = [], []
    for i in range(12):
        first, second = (text.format(i) for text in texts)
        lists += [f"{i} ||| {first} ||| a= {1 + i % 3} b= 0 ||| 0"]
        lists += [f"{i} ||| {second} ||| a= 0 b= {1 + i % 2} ||| 0"]
        scores += [f"{i} ||| {first} ||| 0.2", f"{i} ||| {second} ||| 0.7"]
    references = [f"the dog {i} sees a cat" for i in range(12)]
    files = {"dev.nbest": lists, "comet.scores": scores, "dev.en": references}
    put(tmp_path, {**files, "start": "a_0 1\nb_0 0\n"})
    given = [*ON_LISTS, "decoder.dev=dev.nbest", "data.dev=[dev.en,dev.en]", "data.tokenize=false"]
    given += ["init=file", "init.file=start", f"tuner={tuner}", f"metric={metric}"]
    given += ["metric.path=comet.scores" if metric == "external" else "metric.filters=[bpe]"]
    given += ["metric.weights={bleu:1,wer:1}"] if metric == "mix" else []
    given += ["optimizer.lr=1"] if tuner == "online" else []
    out = run_command("train", *given, "hydra.run.dir=run", folder=tmp_path).check().out
    name, worst, best = RUNS[names]
    assert f"before tuning: dev {name} {worst}" in out and "gained nothing" not in out
    table = re.search(rf"\n{re.escape(name)} .*\n(.*)\n(.*)\n", out)
    assert table[1].split()[2] == best
    second = texts[1].format(0)
    assert second in (tmp_path / "run" / "dev.translations.txt").read_text()
    if metric == "external":
        assert "before tuning: dev comet 0.2000, dev BLEU 100.00" in out
        assert "dev comet 0.7000, BLEU" in out
        assert table[1].split() == ["dev", "0.2000", "0.7000", "+0.5000"]
        assert table[2].startswith("BLEU ")


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


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_corpus_scores_equal_sacrebleu(metric, lowercase):
    for tokenize in ("none", "13a") if metric == "bleu" else ("none",):
        options = {"lowercase": lowercase, "tokenize": tokenize}
        extractor = StatisticsExtractor(metric, REFERENCES, **options)
        found = extractor.extract(HYPOTHESES)
        total = extractor.score_sums(found.rows.sum(axis=0))
        assert total == pytest.approx(found.score.score, rel=1e-12)
        assert len(found.rows) == len(HYPOTHESES)
        assert f"case:{'lc' if lowercase else 'mixed'}" in found.score.signature
        plain = StatisticsExtractor(metric, REFERENCES, tokenize=tokenize).extract(HYPOTHESES)
        assert (plain.score.score != found.score.score) == lowercase
        if metric in METRICS[:3]:
            peer = sacrebleu_metric(metric, **options)
            score = peer.corpus_score(HYPOTHESES, reference_streams(REFERENCES))
            assert (found.score.name, found.score.score) == (score.name, score.score)
    if metric == "bleu":
        assert "nrefs:var|" in found.score.signature and "tok:13a" in found.score.signature
    columns = list(zip(*(one + [None] * (3 - len(one)) for one in REFERENCES), strict=True))
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, columns, tokenize="none").score
    assert corpus_bleu(HYPOTHESES, REFERENCES).score == bleu


def test_what_has_no_score():
    for name, options in (("bleu", {"tokenize": "moses"}), ("meteor", {})):
        with pytest.raises(ValueError, match="'moses'|'meteor'"):
            StatisticsExtractor(name, REFERENCES, **options)
    for hypotheses, references, said in (
        (HYPOTHESES[:2], REFERENCES, "2 hypotheses, .* of 3"),
        ([], [], "no hypotheses"),
        (["a", "b"], [["a"], []], "sentence 1 "),
    ):
        with pytest.raises(InputError, match=said):
            corpus_bleu(hypotheses, references)


# Many zeros: what is undefined is settled by sacrebleu.
COUNTS = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 10**6))


@pytest.mark.parametrize(("metric", "width"), [("bleu", 10), ("chrf", 18), ("ter", 2)])
@given(data=st.data())
def test_scores_of_sums_equal_sacrebleu(metric, width, data):
    sums = data.draw(st.lists(st.lists(COUNTS, min_size=width, max_size=width), min_size=1))
    peer, order = sacrebleu_metric(metric), range(width)
    if metric == "bleu":
        # There are as many words as unigrams, and no more n-grams match than there are.
        sums = [[*map(min, row[:4], row[4:8]), *row[4:8], row[4], row[9]] for row in sums]
        order = [8, 9, *range(8)]
    expected = [peer._compute_score_from_stats([row[i] for i in order]).score for row in sums]
    extractor = StatisticsExtractor(metric, [["a"]])
    found = extractor.score_sums(np.array(sums, np.float64))
    assert found == pytest.approx(np.array(expected), rel=1e-12, abs=1e-12)
    # In any shape.
    assert (extractor.score_sums(np.array([sums], np.float64)) == found[None]).all()


SCORES = """\
1 ||| the dog ||| -0.5
0 ||| a house ||| 0.25
0 |||  ||| -2e-1
0|||a\ttree |||1
0 ||| a house ||| 0.250
1 ||| ||| 0
1 ||| x ||| y ||| 0.75
"""


def test_scores_are_found_by_sentence_and_words(tmp_path, caplog):
    path = put(tmp_path, {"scores.gz": SCORES})
    words = Vocabulary(["dog"])
    bound = ExternalScores(path).bind([[["a"]], [["b"]]], words)
    words.intern(["later"])
    first = kbest_of(0, [["a", "tree"], [], ["a", "house"], ["a", "tree"]], words)
    assert list(bound.gains(first)) == [1, -0.2, 0.25, 1]
    second = kbest_of(1, [["x", "|||", "y"], ["the", "dog"], []], words)
    assert list(bound.gains(second)) == [0.75, -0.5, 0]
    message = f"{path}: has no score of 'the house', a hypothesis of sentence 1 .*missing=worst"
    with pytest.raises(InputError, match=message):
        bound.gains(kbest_of(1, [["the", "dog"], ["the", "house"]], words))
    # Or what is missing takes the worst score.
    bound = ExternalScores(path, missing="worst").bind([[["a"]], [["b"]], [["c"]]], words)
    strings = [["the", "dog"], *([f"w{i}"] for i in range(12))]
    with caplog.at_level(logging.WARNING):
        assert list(bound.gains(kbest_of(1, strings, words))) == [-0.5] * 13
        assert list(bound.gains(kbest_of(0, [["a", "house"], ["a"]], words))) == [0.25, -0.2]
    said = [record.getMessage().partition(": ")[2].split() for record in caplog.records]
    assert [(one[0], one[-4]) for one in said] == [("1", "'w0'"), ("10", "'w9'")]
    with pytest.raises(InputError, match="no score of 'c', a hypothesis of sentence 2 "):
        bound.gains(kbest_of(2, [["c"]], words))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 ||| a house", "is no `sentence .* score`, with the number .*: '0 ... a house'"),
        ("one ||| a house ||| 0.3", "is no `sentence .* from 0, .*: 'one"),
        ("0 ||| a ||| nan", "is no `sentence .* a finite number as its score: .*nan'"),
        ("0 ||| a  house ||| 0.3", "scores a hypothesis 0.3 that an earlier line scores 0.25"),
    ],
)
def test_bad_scores_are_located(tmp_path, line, message):
    path = put(tmp_path, {"scores": f"{SCORES}{line}\n"})
    with pytest.raises(InputError, match=f"^{path}:8: {message}"):
        ExternalScores(path)
    put(tmp_path, {"scores": SCORES})
    with pytest.raises(InputError, match="scores sentence 1 .*there are 1 sentences"):
        ExternalScores(path).bind([[["a"]]], Vocabulary())


RANKED = ["a b c d e", "a b c d", "a b d", "c", "x"]


def test_every_metric(repository, tmp_path):
    """All rank these hypotheses alike, and no two give them and the short ones equal gains."""
    path = tmp_path / "scores.txt"
    path.write_text("".join(f"0 ||| {h} ||| {0.5 - i}\n" for i, h in enumerate(RANKED)))
    words = Vocabulary()
    kbest = kbest_of(0, [hypothesis.split() for hypothesis in RANKED], words)
    short = kbest_of(1, [["a"], ["a", "b"], ["a", "b", "c"], ["c", "a"]], words)
    references = [["a b c d e".split()], [["a", "c"]]]
    seen = {}
    for name in sorted(path.stem for path in (repository / "conf" / "metric").glob("*.yaml")):
        options = {
            "external": [f"metric.path={path}"],
            "mix": ["metric.weights={bleu:1,chrf:1}"],
        }.get(name, [])
        with initialize_config_dir(str(repository / "conf"), version_base="1.3"):
            cfg = compose("train", [f"metric={name}", *options])
        metric = instantiate(cfg.metric).bind(references, words)
        gains = metric.gains(kbest)
        assert gains.dtype == np.float64 and gains.shape == (5,)
        assert gains[0] == gains.max() > gains[-1] == gains.min()
        seen[name] = tuple(gains) if name == "external" else (*gains, *metric.gains(short))
    assert len(set(seen.values())) == len(seen) >= 9
