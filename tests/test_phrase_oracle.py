"""The phrase-based decoder against the lists that Moses wrote, on Multi30k's dev set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import iterate_lines, read_lines
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.grammar.file_grammar import PhraseTable
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.models import Model

SENTENCES = 100
REORDERING = [f"LexicalReordering0_{i}" for i in range(6)]
TRANSLATION = [f"TranslationModel0_{i}" for i in range(4)]


class Entry(NamedTuple):
    """An entry of Moses's lists; its numbers have six digits."""

    index: int
    words: list[str]
    features: dict[str, float]
    total: float


def moses_entries(path: Path) -> Iterator[Entry]:
    for line in iterate_lines(path):
        index, words, features, total = line.split(" ||| ")
        values: dict[str, float] = {}
        label, place = "", 0
        for token in features.split():
            if token.endswith("="):
                label, place = token[:-1], 0
            else:
                values[label if "_" in label else f"{label}_{place}"] = float(token)
                place += 1
        yield Entry(int(index), words.split(), values, float(total))


def run9(shared: Path) -> dict[str, float]:
    """The weights behind the lists of MIRA."""
    weights: dict[str, float] = {}
    for line in read_lines(shared / "oracles" / "moses" / "mira" / "run9.dense"):
        label, value = line.split()
        place = sum(name.startswith(label[:-1]) for name in weights)
        weights[f"{label[:-1]}_{place}"] = float(value)
    return weights | {"UnknownWordPenalty0_0": 1.0}


@pytest.fixture(scope="module")
def moses_table(shared: Path) -> PhraseTable:
    folder = shared / "oracles" / "moses"
    return read_phrase_table(
        folder / "phrase-table.dev.gz",
        reordering=folder / "reordering-table.dev.gz",
        reordering_type="wbe-msd-bidirectional-fe-allff",
    )


class Run(NamedTuple):
    decoder: PhraseDecoder
    weights: dict[str, float]
    lists: KBestLists


def sources(shared: Path) -> list[Source]:
    lines = read_lines(shared / "data" / "multi30k-de-en" / "dev.de")
    return [Source(i, line.split()) for i, line in enumerate(lines)]


@pytest.fixture(scope="module")
def run(shared: Path, moses_table: PhraseTable, multi30k_model: NgramModel) -> Run:
    decoder = PhraseDecoder(Model(moses_table, multi30k_model), k=100)
    weights = run9(shared)
    lists = decoder.decode(sources(shared)[:SENTENCES], FrozenWeights.of(weights))
    return Run(decoder, weights, lists)


@pytest.fixture(scope="module")
def recorded(shared: Path) -> list[list[Entry]]:
    lists: list[list[Entry]] = [[] for _ in range(SENTENCES)]
    for entry in moses_entries(shared / "oracles" / "moses" / "dev.100best.mira.gz"):
        if entry.index >= SENTENCES:
            break
        lists[entry.index].append(entry)
    return lists


def test_lists_are_those_of_moses_or_better(run: Run, recorded: list[list[Entry]]) -> None:
    """Rank by rank, the mean is no worse; and where phrases are the same, so is all else."""
    best = difference = ranks = same = 0.0
    for kbest, theirs in zip(run.lists, recorded, strict=True):
        totals = np.array([entry.total for entry in theirs])
        assert len(kbest) >= len(theirs)
        best += kbest.score[0] - totals[0]
        difference += (kbest.score[: len(theirs)] - totals).sum()
        ranks += len(theirs)
        own = {tuple(kbest.words.names(kbest.hypothesis(h))): h for h in range(len(kbest))}
        for entry in theirs:
            h = own.get(tuple(entry.words))
            if h is None:
                continue
            ids, values = kbest.row(h)
            found = dict(zip(run.decoder.features.names(ids), values.tolist(), strict=True))
            # Numbers of six digits, added up.
            near = {
                name: found.get(name, 0.0) == pytest.approx(value, rel=1e-4, abs=1e-3)
                for name, value in entry.features.items()
            }
            if all(near[name] for name in [*TRANSLATION, "PhrasePenalty0_0", "Distortion0_0"]):
                assert all(near.values()), entry
                same += 1
    print(f"{difference / ranks:+.5f} a rank; {same:.0f} of {ranks:.0f} have the same phrases")
    # It, too, prunes.
    assert best >= -0.002 * SENTENCES and difference >= 0.0
    assert same > ranks / 2


def segmentation(
    source: list[str], target: list[str], pairs: dict[tuple[str, str], int], known: set[str]
) -> list[tuple[int, int, int, int]] | None:
    """Return the only monotone order of some phrase pairs that gives the sentence, else None."""
    found: list[list[tuple[int, int, int, int]]] = []

    def extend(i: int, j: int, left: dict[tuple[str, str], int], steps) -> None:
        if len(found) > 1:
            return
        if i == len(source) and j == len(target):
            if not any(left.values()):
                found.append(steps)
            return
        for pair, count in left.items():
            f, e = pair[0].split("~"), pair[1].split("~")
            if count and source[i : i + len(f)] == f and target[j : j + len(e)] == e:
                step = (i, i + len(f), j, j + len(e))
                extend(step[1], step[3], {**left, pair: count - 1}, [*steps, step])

    extend(0, 0, pairs, [])
    return found[0] if len(found) == 1 else None


def test_features_of_moses_derivations(shared: Path, moses_table: PhraseTable) -> None:
    """The scores of our tables, added up over the phrase pairs that Moses says it used.

    Translation scores for all entries, reordering scores for those without distortion.
    """
    path = shared / "oracles" / "moses" / "dev.100best.sparse.gz"
    sources = read_lines(shared / "data" / "multi30k-de-en" / "dev.de")
    value: dict[tuple[str, str], np.ndarray] = {}
    for rule in range(len(moses_table)):
        f, e = moses_table.rule_text(rule)
        value[" ".join(f), " ".join(e)] = moses_table.dense[rule]
    alone = {f for f, _ in value}
    compared = ordered = 0
    for entry in islice(moses_entries(path), 0, 20_000, 19):
        used: dict[tuple[str, str], int] = {}
        for name, count in entry.features.items():
            if name.startswith("PP_") and count:
                f, _, e = name[3:].partition("~~")
                used[f, e] = int(count)
        if any("~" in word for word in sources[entry.index].split()):
            continue
        rows = {}
        for f, e in used:
            key = f.replace("~", " "), e.replace("~", " ")
            unknown = key not in value and key[0] == key[1] and key[0] not in alone
            rows[f, e] = np.zeros(10) if unknown else value[key]
        total = sum((count * rows[pair] for pair, count in used.items()), np.zeros(10))
        theirs = [entry.features[name] for name in TRANSLATION]
        np.testing.assert_allclose(total[:4], theirs, rtol=1e-4, atol=1e-3)
        compared += 1
        if entry.features["Distortion0_0"] == 0:
            pairs = dict(used)
            steps = segmentation(sources[entry.index].split(), entry.words, pairs, alone)
            if steps is None:
                continue
            last = steps[-1]
            source = sources[entry.index].split()
            pair = "~".join(source[last[0] : last[1]]), "~".join(entry.words[last[2] : last[3]])
            expected = np.zeros(6)
            # Everything is monotone, and nothing is behind the last phrase.
            expected[0], expected[3] = total[4], total[7] - rows[pair][7]
            theirs = [entry.features[name] for name in REORDERING]
            np.testing.assert_allclose(expected, theirs, rtol=1e-4, atol=1e-3)
            ordered += 1
    print(f"{compared} entries, {ordered} of them without distortion")
    # Most are compared, and many have one segmentation alone.
    assert compared > 20_000 / 19 / 2
    assert ordered > compared / 4
