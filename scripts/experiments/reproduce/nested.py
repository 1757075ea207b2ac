#!/usr/bin/env python
"""What features of texts and strings are worth where nothing is chosen outside the folds.

    python scripts/experiments/reproduce/nested.py OUTPUT wer FOLDER
    python scripts/experiments/reproduce/nested.py OUTPUT bleu LISTS REFERENCES
    python scripts/experiments/reproduce/nested.py OUTPUT table

Nested cross-validation, for three seeds: which features there are, and the strength that holds
those of strings, is chosen by two folds of what is not in the fold that is judged; frequencies,
scales of risk and the weights of the start are of the lists tuned on alone. The table is of what
the file OUTPUT has. FOLDER is of ESPnet, with its
references in `text`, and folds are of speakers; LISTS are of any form, with a line of REFERENCES a
sentence.
"""

from __future__ import annotations

import csv
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from lists import read

from torchtune_smt import ListSet, Vocabulary, tune_lists
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.textio import read_lines
from torchtune_smt.evaluation.significance import randomization_test
from torchtune_smt.features.strings import StringFeatures
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.metrics import WordErrorRate
from torchtune_smt.metrics.base import Metric, measure_of
from torchtune_smt.metrics.lists import measured
from torchtune_smt.metrics.mix import CorpusBleu
from torchtune_smt.tuners.expected import ExpectedErrors

SEEDS: Final = (21, 22, 23)
OUTER, INNER, LONGEST = 3, 2, 30
WORDS: Final = StringFeatures(("word", "substitution"))
CANDIDATES: Final[dict[str, dict[str, Any]]] = {
    "own": {"texts": "none"},
    "dense": {"texts": "dense"},
    **{
        f"words, {strength}": {
            "texts": "dense",
            "strings": WORDS,
            "solver": ExpectedErrors(strength=strength),
        }
        for strength in (0.01, 0.03)
    },
}


def part(whole: ListSet, numbers: Int64, names: Vocabulary) -> ListSet:
    """Return some of the lists of a set."""
    groups = None if whole.groups is None else [whole.groups[i] for i in numbers.tolist()]
    lists = replace(whole.lists.some(numbers), features=names)
    return ListSet(whole.name, lists, whole.references, groups)


def chosen(
    whole: ListSet,
    inside: Int64,
    outside: Int64,
    options: dict[str, Any],
    metric: Metric,
    seed: int,
) -> Float64:
    """Return the statistics of what weights that are tuned on lists inside choose outside."""
    assert whole.lists.features is not None
    # Those of other folds have other features.
    names = whole.lists.features.copy()
    tuned = tune_lists(
        part(whole, inside, names), metric=metric, folds=0, seed=seed, samples=1, **options
    )
    lists = measured(part(whole, outside, names).lists, whole.references, metric)
    if tuned.text_features is not None:
        lists = tuned.text_features.added(lists)
    if tuned.string_features is not None:
        lists = tuned.string_features.added(lists, names)
    assert lists.statistics is not None
    rows: Float64 = lists.statistics[lists.best(tuned.weights.numbers())].astype(np.float64)
    return rows


def folds(group: Int64, count: int, generator: np.random.Generator) -> list[Int64]:
    """Return the places in each fold; groups stay together."""
    kinds = generator.permutation(np.unique(group))
    return [np.flatnonzero(np.isin(group, some)) for some in np.array_split(kinds, count)]


def nested(whole: ListSet, metric: Metric, seed: int) -> tuple[dict[str, Float64], list[str]]:
    """Return the statistics of all lists by candidate, and the choices of the outer folds."""
    generator, every = np.random.default_rng(seed), np.arange(len(whole.lists))
    measure, choices = measure_of(metric), list[str]()
    rows = {name: np.empty((every.size, measure.width)) for name in (*CANDIDATES, "nested")}
    for out in folds(whole.group, OUTER, generator):
        inside = np.setdiff1d(every, out)
        inner = [inside[some] for some in folds(whole.group[inside], INNER, generator)]
        score = {}
        for name, options in CANDIDATES.items():
            run = partial(chosen, whole, options=options, metric=metric, seed=seed)
            sums = sum(run(np.setdiff1d(inside, some), some).sum(axis=0) for some in inner)
            score[name] = float(measure.scores(sums))
            rows[name][out] = run(inside, out)
        choices.append(max(score, key=score.__getitem__))
        rows["nested"][out] = rows[choices[-1]][out]
    return rows, choices


def of_corpus(kind: str, given: list[str]) -> tuple[ListSet, Metric]:
    """Return lists, and what they are judged by."""
    if kind == "wer":
        return read(Path(given[0]), Vocabulary(), Vocabulary()), WordErrorRate()
    lists = read_lists(given[0]).lists
    references = [[line.split()] for line in read_lines(Path(given[1]))]
    place = np.arange(lists.begin[-1]) - np.repeat(lists.begin[:-1], np.diff(lists.begin))
    first = np.flatnonzero(place < LONGEST)
    return ListSet(Path(given[0]).name, lists.chosen(first), references), CorpusBleu()


def table(path: str) -> str:
    """Return what each candidate scores on each of the lists: the mean over seeds, and its ends."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kinds = list(dict.fromkeys((row["lists"], row["metric"]) for row in rows))
    heads = [f"{metric}, {name} | p" for name, metric in kinds]
    lines = [f"| weights | {' | '.join(heads)} |", "|---" * (1 + 2 * len(kinds)) + "|"]
    for name in dict.fromkeys(row["candidate"] for row in rows):
        cells = [name]
        for kind in kinds:
            some = [r for r in rows if (r["lists"], r["metric"], r["candidate"]) == (*kind, name)]
            scores, p = ([float(row[what]) for row in some] for what in ("score", "p_own"))
            cells.append(f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})")
            cells.append("" if name == "own" else f"{min(p):.3g} to {max(p):.3g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(output: str, kind: str, *given: str) -> None:
    """Add a line for each result."""
    if kind == "table":
        print(table(output))
        return
    whole, metric = of_corpus(kind, list(given))
    first = measured(whole.lists, whole.references, metric)
    assert first.statistics is not None
    measure, before = first.measure, first.statistics[first.begin[:-1]].astype(np.float64)
    new = not Path(output).exists()
    with open(output, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            head = "lists metric seed candidate score p_decoder p_own chosen seconds"
            writer.writerow(head.split())
        for seed in SEEDS:
            begin = time.process_time()
            rows, choices = nested(whole, metric, seed)
            seconds = f"{time.process_time() - begin:.0f}"
            groups = np.zeros((2, int(whole.group.max()) + 1, measure.width))
            for name, after in {"decoder": before, **rows}.items():
                shown = float(measure.of_people(measure.scores(after.sum(axis=0))))
                p = []
                for other in (before, rows["own"]):
                    groups[:] = 0
                    for row, some in zip(groups, (other, after), strict=True):
                        np.add.at(row, whole.group, some)
                    was, now = groups[:, :, None]
                    test = randomization_test(was, now, measure.scores, 2000, seed)
                    p.append(f"{test.value:.4f}")
                which = "; ".join(choices) if name == "nested" else ""
                scores = [name, f"{shown:.3f}", *p, which, seconds]
                writer.writerow([whole.name, measure.name, seed, *scores])
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
