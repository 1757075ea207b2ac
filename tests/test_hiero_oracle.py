"""The hierarchical decoder against the k-best lists that cdec wrote, on Multi30k's dev set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.grammar import FileGrammar
from torchtune_smt.kbest.lists import KBest, Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.models import Model

SENTENCES = 60


class Entry(NamedTuple):
    """An entry of cdec's lists; its numbers have six digits."""

    words: str
    features: dict[str, float]
    score: float


class Run(NamedTuple):
    decoder: HieroDecoder
    weights: Weights
    kbests: list[KBest]


@pytest.fixture(scope="module")
def recorded(shared: Path) -> list[list[Entry]]:
    lists: list[list[Entry]] = [[] for _ in range(SENTENCES)]
    for line in read_lines(shared / "oracles" / "cdec" / "dev.k100.pop200.kbest.gz"):
        index, words, features, score = line.split(" ||| ")
        if int(index) >= SENTENCES:
            break
        pairs = (pair.rsplit("=", 1) for pair in features.split())
        entry = Entry(words, {name: float(value) for name, value in pairs}, float(score))
        lists[int(index)].append(entry)
    return lists


def sources(shared: Path) -> list[Source]:
    lines = islice(read_lines(shared / "data" / "multi30k-de-en" / "dev.de"), SENTENCES)
    return [Source(i, line.split()) for i, line in enumerate(lines)]


def weights_of(decoder: HieroDecoder, shared: Path) -> Weights:
    weights = Weights(decoder.dense_names)
    names, values = read_weights(shared / "oracles" / "cdec" / "weights")
    weights.set(names.names(range(len(names))), values)
    return weights


@pytest.fixture(scope="module")
def run(shared: Path, cdec_grammar: FileGrammar, multi30k_model: NgramModel) -> Run:
    """Our lists, as cdec was asked for its."""
    decoder = HieroDecoder(Model(cdec_grammar, multi30k_model), k=100, pop_limit=200, max_span=15)
    weights = weights_of(decoder, shared)
    return Run(decoder, weights, decoder.decode(sources(shared), weights))


def entries(run: Run, kbest: KBest) -> Iterator[Entry]:
    """The entries of one of our lists, as cdec writes them."""
    for h in range(len(kbest)):
        ids, values = kbest.row(h)
        names = run.decoder.features.names(ids)
        words = " ".join(run.decoder.words.names(kbest.hypothesis(h)))
        yield Entry(words, dict(zip(names, values.tolist(), strict=True)), float(kbest.score[h]))


def test_every_weight_is_one_of_the_decoder(run: Run) -> None:
    assert len(run.weights) == run.weights.n_dense == 12


def test_features_of_cdec_give_its_scores(run: Run, recorded: list[list[Entry]]) -> None:
    weight = dict(zip(run.decoder.dense_names, run.weights.read(None, np.arange(12)), strict=True))
    for entry in (entry for kbest in recorded for entry in kbest):
        score = sum(value * weight[name] for name, value in entry.features.items())
        assert score == pytest.approx(entry.score, abs=1e-4)


def test_language_model_feature_of_cdec(
    multi30k_model: NgramModel, recorded: list[list[Entry]]
) -> None:
    entries = [entry for kbest in recorded for entry in kbest]
    logp, unknown = multi30k_model.score_all([entry.words.split() for entry in entries])
    theirs = np.array([entry.features["LanguageModel"] for entry in entries])
    assert np.abs(logp - theirs).max() <= 1e-4 * np.abs(theirs).max()
    assert np.abs(logp / theirs - 1).max() < 1e-5
    assert unknown.tolist() == [entry.features.get("LanguageModel_OOV", 0) for entry in entries]


def test_best_scores_are_those_of_cdec(run: Run, recorded: list[list[Entry]]) -> None:
    ours = np.array([kbest.score[0] for kbest in run.kbests])
    theirs = np.array([kbest[0].score for kbest in recorded])
    assert (ours >= theirs - 1e-4).mean() >= 0.98
    assert ours.mean() >= theirs.mean() - 0.0005


def compare(run: Run, recorded: list[list[Entry]]) -> dict[str, int]:
    """Count what became of cdec's entries in our lists."""
    counts = dict.fromkeys(["entries", "lost", "lower", "equal", "higher", "same features"], 0)
    for kbest, theirs in zip(run.kbests, recorded, strict=True):
        own = {entry.words: entry for entry in entries(run, kbest)}
        counts["entries"] += len(theirs)
        for entry in theirs:
            found = own.get(entry.words)
            if found is None:
                counts["lost"] += int(entry.score > kbest.score[-1] + 1e-4)
            elif abs(found.score - entry.score) > 1e-4:
                counts["lower" if found.score < entry.score else "higher"] += 1
            else:
                counts["equal"] += 1
                counts["same features"] += all(
                    found.features.get(name, 0.0) == pytest.approx(value, rel=2e-5, abs=1e-4)
                    for name, value in entry.features.items()
                )
    return counts


def test_lists_are_those_of_cdec_or_better(run: Run, recorded: list[list[Entry]]) -> None:
    """cdec, too, prunes, and it finds a string's best derivation less often.

    What is not in our lists is worse than all that is; equal scores come from equal features,
    but for ties.
    """
    for kbest, theirs in zip(run.kbests, recorded, strict=True):
        assert len(kbest) >= len(theirs)
        mean = np.mean([entry.score for entry in theirs])
        assert kbest.score[: len(theirs)].mean() > mean - 2e-3
    counts = compare(run, recorded)
    print(counts)
    assert counts["lost"] < 0.02 * counts["entries"]
    assert counts["lower"] < 0.02 * counts["entries"]
    assert counts["equal"] > 0.6 * counts["entries"]
    assert counts["same features"] > 0.98 * counts["equal"]


def test_nothing_is_lost_with_little_pruning(
    shared: Path,
    run: Run,
    recorded: list[list[Entry]],
    cdec_grammar: FileGrammar,
    multi30k_model: NgramModel,
) -> None:
    some = 20
    decoder = HieroDecoder(Model(cdec_grammar, multi30k_model), k=100, pop_limit=2000)
    kbests = decoder.decode(sources(shared)[:some], run.weights)
    counts = compare(Run(decoder, run.weights, kbests), recorded[:some])
    assert counts["lost"] == counts["lower"] == 0
