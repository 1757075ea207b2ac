#!/usr/bin/env python
"""Minimum Bayes risk by the scale of its probabilities and by its metric: mbr.csv.

    python scripts/experiments/reproduce/mbr.py [--small] [--output docs/results/better/mbr.csv]
        [--systems CORPUS/ROW ...] [--seeds 1 2 3 4 5]

With weights of `better.py`. A line has BLEU and the length (in parts of the references) of what a
metric and scale choose (neither: the best hypothesis), and the share of the largest entropy that
lists have at the scale; at the last one it is `SHARE` on dev.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from better import LONGEST, ROWS, SETS, overrides_of, place
from command_line import ended, stand_ins
from runs import REPOSITORY
from scipy.special import xlogy
from tuned import Corpus

from torchtune_smt.core.textio import atomic_writer
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.kbest.order import scale_of
from torchtune_smt.metrics import BleuPlusOne, NakovBleu, SacreBleu
from torchtune_smt.metrics.base import Metric, gains_of
from torchtune_smt.metrics.lists import measured

SYSTEMS: Final = ("tanaka/hiero", "tanaka/hiero_mira", "multi30k/hiero_de", "fisher/phrase")
METRICS: Final = {"bleu_plus_one": BleuPlusOne(), "nakov": NakovBleu(), "sacrebleu": SacreBleu()}
SCALES, SHARE, SENTENCES = (0, 0.1, 0.3, 1, 3, 10, 30), 0.7, 1000


def gains_by_pair(kbest: Any, metric: Metric) -> Any:
    """Return the gain [h, j] of each hypothesis h, each one, j, with words being its reference."""
    strings = [text.split() for text in kbest.texts()]
    bound = metric.bind([[string or ["none"]] for string in strings], kbest.words)
    kbest, gains = replace(kbest, gain=None, statistics=None), np.zeros((len(kbest), len(kbest)))
    for j, string in enumerate(strings):
        gains[:, j] = gains_of(bound, replace(kbest, index=j)) if string else 0
    return gains


def lines_of(system: str, seed: int, given: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Yield the lines of a system, of the first `SENTENCES` of each set."""
    (name, key), scales = system.split("/"), list(SCALES)
    overrides = overrides_of(name, ROWS[key], given)
    corpus = Corpus(overrides, {"dev": "dev", **stand_ins(given)})
    decoder, weights = corpus.system(overrides, place(name, key, seed, given))
    for split in SETS:
        lists: Any = decoder.decode(corpus.sources(split)[:SENTENCES], weights, k=LONGEST)
        references = [[line.split() for line in row] for row in corpus.references(split)]
        lists = measured(lists, references[:SENTENCES])
        if split == SETS[0]:
            scales.append(round(scale_of(lists.begin, lists.score, SHARE), 3))
        sums, shares = {metric: np.zeros((len(scales), 10)) for metric in METRICS}, []
        for kbest in lists:
            p = np.exp(np.outer(scales, kbest.score - kbest.score.max()))
            p /= p.sum(axis=1, keepdims=True)
            if len(kbest) > 1:
                shares.append(-xlogy(p, p).sum(axis=1) / np.log(len(kbest)))
            for metric, rows in sums.items():
                rows += kbest.statistics[(gains_by_pair(kbest, METRICS[metric]) @ p.T).argmax(0)]
        every: list[Any] = [("", "", "", lists.statistics[lists.begin[:-1]].sum(axis=0))]
        for metric, rows in sums.items():
            entropy = np.mean(shares, axis=0).round(3)
            every += zip([metric] * len(scales), scales, entropy, rows, strict=True)
        for metric, scale, own, row in every:
            bleu, length = f"{100 * float(BLEU.scores(row)):.2f}", f"{row[8] / row[9]:.4f}"
            yield key, name, seed, split, metric, scale, bleu, length, own


def write(given: argparse.Namespace) -> list[str]:
    """Write the file; return the rows that have failed: none."""
    given.folder, given.output, given.set = given.folder.resolve(), given.output.resolve(), []
    os.chdir(REPOSITORY)
    with atomic_writer(given.output) as file:
        file.write("row,corpus,seed,set,metric,scale,bleu,length,share\n")
        systems = ["example/phrase"] if given.small else given.systems
        for of in product(systems, given.seeds):
            file.writelines(",".join(map(str, line)) + "\n" for line in lines_of(*of, given))
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description="Tries scales and metrics of minimum Bayes risk.")
    parser.add_argument("--small", action="store_true", help="of the bundled example")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, metavar="CORPUS/ROW")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / "better")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "outputs/better/mbr.csv")
    return ended(lambda: write(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
