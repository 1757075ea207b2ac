"""The decoders against the k-best lists that cdec and Moses wrote, on Multi30k's dev set."""

from collections import namedtuple
from itertools import takewhile

import numpy as np
import pytest
from hiero_reference import features_of

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import iterate_lines, read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models import Model

# An entry of another tool's lists; its numbers have six digits.
Entry = namedtuple("Entry", ["words", "features", "score"])


def decoded(decoder, weights, shared, some):
    lines = read_lines(shared / "data" / "multi30k-de-en" / "dev.de")[:some]
    sources = [Source(i, line.split()) for i, line in enumerate(lines)]
    return decoder.decode(sources, FrozenWeights.of(weights))


def lists_of(entries, some):
    lists = [[] for _ in range(some)]
    for index, entry in takewhile(lambda one: one[0] < some, entries):
        lists[index].append(entry)
    return lists


# cdec

SENTENCES = 60


def cdec_entries(path):
    for line in read_lines(path):
        index, words, features, score = line.split(" ||| ")
        pairs = (pair.rsplit("=", 1) for pair in features.split())
        values = {name: float(value) for name, value in pairs}
        yield int(index), Entry(words, values, float(score))


@pytest.fixture(scope="module")
def of_cdec(shared):
    path = shared / "oracles" / "cdec" / "dev.k100.pop200.kbest.gz"
    return lists_of(cdec_entries(path), SENTENCES)


@pytest.fixture(scope="module")
def hiero(shared, cdec_grammar, multi30k_model):
    """Our lists, as cdec was asked for its."""
    decoder = HieroDecoder(Model(cdec_grammar, multi30k_model), k=100, pop_limit=200, max_span=15)
    names, values = read_weights(shared / "oracles" / "cdec" / "weights")
    # Every weight is one of the decoder.
    assert set(names) == set(decoder.dense_names) and len(names) == 12
    weights = dict(zip(names, values.tolist(), strict=True))
    return decoded(decoder, weights, shared, SENTENCES)


def test_the_language_model_is_that_of_cdec(multi30k_model, of_cdec):
    entries = [entry for kbest in of_cdec for entry in kbest]
    logp, unknown = multi30k_model.score_all([entry.words.split() for entry in entries])
    theirs = np.array([entry.features["LanguageModel"] for entry in entries])
    assert np.abs(logp - theirs).max() <= 1e-4 * np.abs(theirs).max()
    assert np.abs(logp / theirs - 1).max() < 1e-5
    assert unknown.tolist() == [entry.features.get("LanguageModel_OOV", 0) for entry in entries]


def test_lists_are_those_of_cdec_or_better(hiero, of_cdec):
    """cdec, too, prunes, and it finds a string's best derivation less often.

    What is not in our lists is worse than all that is; equal scores come from equal features,
    but for ties.
    """
    counts = dict.fromkeys(["entries", "lost", "lower", "equal", "same features"], 0)
    best = []
    for kbest, theirs in zip(hiero, of_cdec, strict=True):
        best.append([kbest.score[0], theirs[0].score])
        assert len(kbest) >= len(theirs)
        mean = np.mean([entry.score for entry in theirs])
        assert kbest.score[: len(theirs)].mean() > mean - 2e-3
        own = {kbest.text(h): h for h in range(len(kbest))}
        counts["entries"] += len(theirs)
        for entry in theirs:
            h = own.get(entry.words)
            if h is None:
                counts["lost"] += int(entry.score > kbest.score[-1] + 1e-4)
            elif abs(kbest.score[h] - entry.score) > 1e-4:
                counts["lower"] += int(kbest.score[h] < entry.score)
            else:
                counts["equal"] += 1
                found = features_of(kbest, h)
                counts["same features"] += all(
                    found.get(name, 0.0) == pytest.approx(value, rel=2e-5, abs=1e-4)
                    for name, value in entry.features.items()
                )
    ours, of_them = np.transpose(best)
    assert (ours >= of_them - 1e-4).mean() >= 0.98 and ours.mean() >= of_them.mean() - 0.0005
    assert counts["lost"] < 0.02 * counts["entries"]
    assert counts["lower"] < 0.02 * counts["entries"]
    assert counts["equal"] > 0.6 * counts["entries"]
    assert counts["same features"] > 0.98 * counts["equal"]


# Moses

MOSES_SENTENCES = 100
REORDERING = [f"LexicalReordering0_{i}" for i in range(6)]
TRANSLATION = [f"TranslationModel0_{i}" for i in range(4)]


def moses_entries(path):
    for line in iterate_lines(path):
        index, words, features, total = line.split(" ||| ")
        yield int(index), Entry(words.strip(), labelled(features), float(total))


def labelled(features):
    """Return the values behind each label, numbered."""
    values = {}
    label, place = "", 0
    for token in features.split():
        if token.endswith("="):
            label, place = token[:-1], place * (token[:-1] == label)
        else:
            values[label if "_" in label else f"{label}_{place}"] = float(token)
            place += 1
    return values


@pytest.fixture(scope="module")
def moses_table(shared):
    folder = shared / "oracles" / "moses"
    return read_phrase_table(
        folder / "phrase-table.dev.gz",
        reordering=folder / "reordering-table.dev.gz",
        reordering_type="wbe-msd-bidirectional-fe-allff",
    )


def test_lists_are_those_of_moses_or_better(shared, moses_table, multi30k_model):
    """Rank by rank, the mean is no worse; and where phrases are the same, so is all else."""
    folder = shared / "oracles" / "moses"
    # The weights behind the lists of MIRA.
    weights = labelled(" ".join(read_lines(folder / "mira" / "run9.dense")))
    weights["UnknownWordPenalty0_0"] = 1.0
    decoder = PhraseDecoder(Model(moses_table, multi30k_model), k=100)
    lists = decoded(decoder, weights, shared, MOSES_SENTENCES)
    recorded = lists_of(moses_entries(folder / "dev.100best.mira.gz"), MOSES_SENTENCES)
    best = difference = ranks = same = 0.0
    for kbest, theirs in zip(lists, recorded, strict=True):
        totals = np.array([entry.score for entry in theirs])
        assert len(kbest) >= len(theirs)
        best += kbest.score[0] - totals[0]
        difference += (kbest.score[: len(theirs)] - totals).sum()
        ranks += len(theirs)
        own = {kbest.text(h): h for h in range(len(kbest))}
        for entry in theirs:
            h = own.get(" ".join(entry.words.split()))
            if h is None:
                continue
            found = features_of(kbest, h)
            # Numbers of six digits, added up.
            near = {
                name: found.get(name, 0.0) == pytest.approx(value, rel=1e-4, abs=1e-3)
                for name, value in entry.features.items()
            }
            if all(near[name] for name in [*TRANSLATION, "PhrasePenalty0_0", "Distortion0_0"]):
                assert all(near.values()), entry
                same += 1
    # It, too, prunes.
    assert best >= -0.002 * MOSES_SENTENCES and difference >= 0.0
    assert same > ranks / 2
