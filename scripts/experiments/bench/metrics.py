"""Statistics of metrics beside sacrebleu's, and MERT on each metric beside MERT on BLEU.

    python scripts/experiments/bench/metrics.py [--small]

Noisy copies of the bundled example's sentences are lists of 30 hypotheses. Prints CPU time a
hypothesis and how often sacrebleu's is as long, and CPU time of MERT on the same features, with the
same climbs, by that on BLEU (median of turns).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from significance import noisy, references
from timing import cpu

from torchtune_smt import KBestLists, Mert, measured
from torchtune_smt.metrics import (
    CharacterErrorRate,
    ChrF,
    MetricMix,
    NakovBleu,
    TranslationEditRate,
    WordErrorRate,
)

METRICS: dict[str, Any] = {
    "bleu": NakovBleu(),
    "chrf": ChrF(),
    "ter": TranslationEditRate(),
    "wer": WordErrorRate(),
    "cer": CharacterErrorRate(),
    "mix": MetricMix({"bleu": 1, "ter": 1}),
}
PEERS: dict[str, Any] = {"chrf": CHRF(), "ter": TER(case_sensitive=True)}


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the CPU time of a call, and what it returns."""
    begin = cpu()
    found = function(*arguments)
    return cpu() - begin, found


def of_peer(peer: Any, lists: list[list[str]], sentences: list[str]) -> None:
    """Let sacrebleu count its statistics of all hypotheses; references are prepared once."""
    for sentence, hypotheses in zip(sentences, lists, strict=True):
        prepared = peer._extract_reference_info([sentence])
        for hypothesis in hypotheses:
            peer._compute_segment_statistics(hypothesis, prepared)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="to see that it runs")
    small = parser.parse_args().small
    k, turns = (3, 1) if small else (30, 5)
    generator = np.random.default_rng(1)
    sentences = references()[: 10 if small else 300]
    copies = [noisy(sentences, [0.3] * len(sentences), generator) for _ in range(k)]
    strings = [list(row) for row in zip(*copies, strict=True)]
    features = [
        [{f"f{f}": x for f, x in enumerate(generator.normal(size=12))} for _ in row]
        for row in strings
    ]
    lists = KBestLists.of_strings(strings, features)
    words = [[sentence.split()] for sentence in sentences]
    start, n = np.ones(12), lists.n_hypotheses
    given: dict[str, KBestLists] = {}
    times: dict[str, list[tuple[float, float, float]]] = {}
    print("| metric | µs a hypothesis | sacrebleu, times as long |\n|---|---|---|")
    for name, metric in METRICS.items():
        measured(lists, words, metric)  # compiles
        spent, given[name] = timed(measured, lists, words, metric)
        ratio = ""
        if name in PEERS:
            ratio = f"{timed(of_peer, PEERS[name], strings, sentences)[0] / spent:.0f}"
        print(f"| {name} | {1e6 * spent / n:.1f} | {ratio} |", flush=True)
    mert = Mert(restarts=2)
    print("\n| MERT on | s | line searches | ms a search | by BLEU's |\n|---|---|---|---|---|")
    for turn in range(turns + 1):
        for name in METRICS:
            spent, found = timed(mert.solve, given[name], start, [0])
            searches = found.report["line_searches"]
            if turn:  # the first one compiles
                times.setdefault(name, []).append((spent, searches, 1000 * spent / searches))
    base = np.median([row[2] for row in times["bleu"]])
    for name, rows in times.items():
        whole, searches, each = np.median(rows, axis=0)
        print(f"| {name} | {whole:.2f} | {searches:.0f} | {each:.3f} | {each / base:.2f} |")


if __name__ == "__main__":
    main()
