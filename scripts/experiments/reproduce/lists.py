#!/usr/bin/env python
"""What features of texts are worth on lists of a speech recogniser: docs/results/lists.

    python scripts/experiments/reproduce/lists.py FOLDER docs/results/lists/results.csv

FOLDER has dev_clean, dev_other and test_clean, as ESPnet writes them, each with its references in
`text`. Weights are tuned on one of the first two sets and judged on it by cross-validation by
speaker, and on the two others; for each choice of texts, for three seeds.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

from torchtune_smt import ListSet, Vocabulary, tune_lists
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.tools import keyed_lines
from torchtune_smt.metrics import WordErrorRate

SETS = ("dev_clean", "dev_other", "test_clean")
SEEDS = (11, 12, 13)


def read(folder: Path, words: Vocabulary, features: Vocabulary) -> ListSet:
    """Return the lists of a set, with the speaker of each."""
    lists = read_lists(folder, words=words, features=features).lists
    assert lists.ids is not None
    texts = keyed_lines(folder / "text")
    ids = lists.ids.names(range(len(lists.ids)))
    speakers = [lists.ids[n].partition("-")[0] for n in lists.index.tolist()]
    return ListSet(folder.name, lists, [[texts[id][0].split()] for id in ids], speakers)


def main(folder: str, output: str) -> None:
    """Write a line for each result."""
    jobs = [(dev, seed) for seed in SEEDS for dev in SETS[:2]]
    words, features = Vocabulary(), Vocabulary()
    every = {name: read(Path(folder) / name, words, features) for name in SETS}
    with open(output, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["tuned_on", "utterances", "seed", "texts", "judged", "before", "after", "p", "seconds"]
        )
        for dev, seed in jobs:
            for texts in ("none", "dense"):
                sets = dict(every)
                mine = sets.pop(dev)
                begin = time.process_time()
                tuned = tune_lists(
                    *(mine, *sets.values()),
                    metric=WordErrorRate(),
                    texts=texts,
                    seed=seed,
                    samples=2000,
                )
                seconds = time.process_time() - begin
                for one in tuned.judged:
                    p = "" if one.p is None else f"{one.p:.4f}"
                    scores = f"{one.before:.3f}", f"{one.after:.3f}"
                    what = one.what.replace(f"{dev}, ", "") if one.what != dev else "dev"
                    writer.writerow(
                        [dev, len(mine.lists), seed, texts, what, *scores, p, f"{seconds:.1f}"]
                    )
                file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
