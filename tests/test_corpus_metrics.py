"""Metrics with corpus statistics: against plain definitions, sacrebleu, and published errors."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run_command
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from torchtune_smt import KBestLists, measured, minimum_risk
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.sentences import FileNumbers
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics import (
    BleuPlusOne,
    CharacterErrorRate,
    ChrF,
    MetricMix,
    TranslationEditRate,
    WordErrorRate,
    bind_metric,
)
from torchtune_smt.metrics.base import Judge

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


def noisy(generator, words):
    """Return words some of which are others, and of which blocks are elsewhere."""
    words = list(words)
    for _ in range(generator.integers(4)):
        a = generator.integers(len(words) + 1)
        block, words = words[a : a + 4], words[:a] + words[a + 4 :]
        b = generator.integers(len(words) + 1)
        words[b:b] = block
    return [w if generator.random() > 0.1 else "x" for w in words]


def peer_rows(peer, corpus):
    """Return sacrebleu's statistics of each hypothesis."""
    rows = []
    for lists, references in corpus:
        prepared = peer._extract_reference_info([" ".join(one) for one in references])
        for words in lists:
            rows.append(peer._compute_segment_statistics(" ".join(words), prepared))
    return rows


PEERS = {
    "chrf": (ChrF(), CHRF()),
    "of others": (ChrF(order=3, beta=1), CHRF(char_order=3, beta=1)),
    "ter": (TranslationEditRate(), TER(case_sensitive=True)),
}


def check_peer(name, corpus):
    metric, peer = PEERS[name]
    found = measured(of_strings(corpus), [references for _, references in corpus], metric)
    rows = np.array(peer_rows(peer, corpus), float)
    assert np.array_equal(found.statistics, rows)
    score = 100 * abs(metric.measure.scores(rows.sum(axis=0)))
    assert score == pytest.approx(peer._aggregate_and_compute(rows.tolist()).score, abs=1e-9)


@pytest.mark.parametrize("name", PEERS)
@given(corpus=corpora)
def test_statistics_are_sacrebleus(name, corpus):
    check_peer(name, corpus)


@pytest.mark.parametrize("name", PEERS)
def test_statistics_of_longer_sentences_are_sacrebleus(name):
    """Words in another order, and sentences of very different lengths."""
    generator, corpus = np.random.default_rng(3), []
    for length in (1, 3, 8, 20, 25, 30, 60):
        references = [[f"w{w}" for w in generator.integers(40, size=n)] for n in (length, 12)]
        lists = [noisy(generator, references[i % 2]) for i in range(4)]
        corpus.append(([*lists, [], ["w1"], references[1] * 4], references))
    check_peer(name, corpus)


def test_a_mix_is_the_sum_of_its_parts(tmp_path):
    path, corpus = tmp_path / "comet.txt", [([["a", "b"], ["c"], []], [["a", "c"]])]
    path.write_text("0 ||| a b ||| 0.7\n0 ||| c ||| -1.5\n0 |||  ||| 2\n")
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
    for weights, more in (({}, None), ({"x": 1}, None), ({"external": 1}, None)):
        with pytest.raises(ValueError, match="weights"):
            MetricMix(weights, more)


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
    for reference in (line, left):
        found = measured(lists, [[reference.split()]], metric)
        assert found.gain[0] == 0 > found.gain[1]
        assert found.statistics[0, 1] == len(left.split())
        assert found[0].text(0) == line
    with pytest.raises(ValueError, match="filters"):
        WordErrorRate(filters=["stem"])


def test_minimum_risk_expects_errors_of_lists_with_an_empty_hypothesis():
    lists = KBestLists.of_strings([["a b c", "", "a b"]], scores=[[0.0, 1.0, 0.5]])
    found = minimum_risk(lists, WordErrorRate())
    share = np.exp([0, 1, 0.5]) / np.exp([0, 1, 0.5]).sum()
    expected = -np.array([[0, 3, 1], [3, 0, 2], [1, 2, 0]]) @ share
    order = np.argsort(-expected)
    assert found.score == pytest.approx(expected[order]) and found.entry.tolist() == order.tolist()


def test_lists_of_any_metric_are_kept(tmp_path):
    corpus = [([["a"], ["b", "c"]], [["a"], ["b", "a"]])]
    found = measured(of_strings(corpus), [corpus[0][1]], WordErrorRate())
    store = ListStore(folder=tmp_path, measure=found.measure)
    store.add(found)
    store.end_iteration()
    kept = ListStore.open(tmp_path, n_dense=0, measure=found.measure).lists()
    assert kept.measure == found.measure
    assert kept.statistics.tolist() == found.statistics.tolist() == [[0, 1.5], [1, 1.5]]
    with pytest.raises(InputError, match="metric"):
        ListStore.open(tmp_path, n_dense=0)


@pytest.mark.parametrize("metric", ["wer", "mix", "ter"])
def test_a_run_tunes_it(tmp_path, metric):
    """The better hypothesis of each list has the larger b; the start prefers the other."""
    lists, references = [], []
    for i in range(8):
        references.append(f"the dog {i} sees a cat\n")
        lists.append(f"{i} ||| the do@@ g {i} sees cats ||| a= {1 + i % 2} b= 0 ||| 0\n")
        lists.append(f"{i} ||| the do@@ g {i} sees a cat ||| a= 0 b= {1 + i % 3} ||| 0\n")
    (tmp_path / "dev.nbest").write_text("".join(lists))
    (tmp_path / "dev.en").write_text("".join(references))
    (tmp_path / "start").write_text("a_0 1\nb_0 0\n")
    given = ["tuner=mert", "decoder=kbest_files", "decoder.dev=dev.nbest", "data=files"]
    given += ["data.name=x", "data.source_language=de", "data.target_language=en"]
    given += ["data.train=null", "data.dev=[dev.en,dev.en]", "data.test=null", "init=file"]
    given += ["init.file=start", "data.tokenize=false", f"metric={metric}", "hydra.run.dir=run"]
    given += ["metric.filters=[bpe]"]
    given += ["metric.weights={bleu:1,wer:1}"] if metric == "mix" else []
    out = run_command("train", *given, folder=tmp_path).check().out
    name, worst, best = {
        "wer": ("WER", "33.333", "0.000"),
        "ter": ("TER", "33.33", "0.00"),
        "mix": ("mix(BLEU, WER)", "", "100.00"),
    }[metric]
    assert f"before tuning: dev {name} {worst}" in out
    lines = out.splitlines()
    table = lines.index(next(line for line in lines if line.startswith(f"{name} ")))
    assert lines[table + 1].split()[2] == best
    assert "gained nothing" not in out
    assert "do@@ g 0 sees a cat" in (tmp_path / "run" / "dev.translations.txt").read_text()


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
