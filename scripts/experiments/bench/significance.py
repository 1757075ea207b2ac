"""How often significance tests reject.

    python scripts/experiments/bench/significance.py [--small] [--nulls N ...]
    python scripts/experiments/bench/significance.py --table docs/results/lists/significance.csv

Simulates pairs of systems that do not differ (nulls) and pairs that do, from statistics of
sentences of the bundled example with noise in place of translation errors. Prints, for each test
and for sacrebleu's own on the same pairs, the share of p-values up to some levels with its standard
error, how far the p-values are from uniform (Kolmogorov and Smirnov's statistic), how often
intervals hold the true score, and the time of a test. With --table, what `tune` reports alone,
of every metric that it tunes to: randomisation and intervals, in a file.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from timing import cpu

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.data.preprocess import Preprocessor
from torchtune_smt.evaluation.significance import (
    INTERVAL,
    Score,
    bootstrap_scores,
    bootstrap_test,
    randomization_test,
    runs_test,
)
from torchtune_smt.kbest.measure import mean
from torchtune_smt.metrics.corpus import METRICS, StatisticsExtractor

LEVELS = (0.01, 0.05, 0.1)
# What else is tuned to: a number for each hypothesis, here its own chrF, and a mix.
TUNED = (*METRICS, "column", "mix")
MIX = {"bleu": 0.5, "ter": 0.5}
Test = Callable[[Float64, int, int], float]
"""Takes statistics [n, outputs, statistics], samples and a seed, and returns p."""
Pair = Callable[[np.random.Generator], Float64]
"""Draws two systems: statistics [n, outputs, statistics]."""


@dataclass(frozen=True)
class Population:
    """What sentences are drawn from.

    Attributes
    ----------
    rows : float64 [n, outputs, statistics]
        Of all outputs for all sentences.
    score : callable
        Of sums of statistics.
    """

    rows: Float64
    score: Score

    def sentences(self, size: int, generator: np.random.Generator) -> Float64:
        """Return the rows of sentences drawn with replacement."""
        return self.rows[generator.integers(len(self.rows), size=size)]


def references() -> list[str]:
    """Return the sentences that all outputs are noisy copies of: tokens, as systems write them."""
    prepared = Preprocessor("en")
    return [" ".join(prepared.tokens(line)) for line in read_lines(example_folder() / "train.en")]


def noisy(
    sentences: Sequence[str], rates: Iterable[float], generator: np.random.Generator
) -> list[str]:
    """Return copies in which words are replaced, left out or doubled at each sentence's rate."""
    vocabulary = sorted({word for sentence in sentences for word in sentence.split()})
    copies = []
    for sentence, rate in zip(sentences, rates, strict=True):
        words: list[str] = []
        for word in sentence.split():
            change = generator.random() / rate
            if change < 0.5:
                words.append(vocabulary[generator.integers(len(vocabulary))])
            elif change < 0.75:
                words += [word, word]
            elif change >= 1:
                words.append(word)
        copies.append(" ".join(words))
    return copies


def measure(metric: str, outputs: Sequence[Sequence[str]], sentences: Sequence[str]) -> Population:
    """Return the statistics of some outputs for all sentences."""
    kind = {"column": "chrf", "mix": MIX}.get(metric, metric)
    extractor = StatisticsExtractor(kind, [[sentence] for sentence in sentences])
    rows = np.stack([extractor.extract(output).rows for output in outputs], axis=1)
    if metric == "column":
        numbers = extractor.score_sums(rows)
        return Population(np.stack([numbers, np.ones_like(numbers)], axis=-1), mean("").scores)
    return Population(rows, extractor.score_sums)


def unlike_but_equal(even: Float64, good: Float64, bad: Float64, score: Score) -> Float64:
    """Return statistics of an output, good in some sentences and bad in others, as good as `even`.

    Parameters
    ----------
    even, good, bad : float64 [n, statistics]
    score : callable
        Of sums of statistics.
    """
    target, best, worst = (score(rows.sum(axis=0)) for rows in (even, good, bad))
    low, high = 0, len(even)
    while low < high:
        middle = (low + high) // 2
        mixed = score(good[:middle].sum(axis=0) + bad[middle:].sum(axis=0))
        # How much of the way; a score may be one of which less is better.
        if (mixed - worst) / (best - worst) < (target - worst) / (best - worst):
            low = middle + 1
        else:
            high = middle
    return np.concatenate([good[:low], bad[low:]])


def swap(rows: Float64, generator: np.random.Generator) -> Float64:
    """Shuffle the outputs within each sentence."""
    order = generator.permuted(np.tile(np.arange(rows.shape[1]), (len(rows), 1)), axis=1)
    return rows[np.arange(len(rows))[:, None], order]


def own(test: Callable[..., Any], score: Score, runs: int = 1) -> Test:
    """Return a test of this package; the first `runs` outputs are the baseline's."""
    return lambda rows, samples, seed: float(
        test(rows[:, :runs], rows[:, runs:], score, samples, seed).value
    )


def of_runs(score: Score, runs: int) -> Test:
    """Return the test of whole runs."""

    def p(rows: Float64, samples: int, seed: int) -> float:
        scores = score(rows.sum(axis=0))
        return runs_test(scores[:runs], scores[runs:], samples, seed).value

    return p


class StoredStatistics(BLEU):
    """sacrebleu's BLEU with statistics in the place of hypotheses."""

    def __init__(self) -> None:
        super().__init__()
        # Its signature asks for it.
        self.num_refs = 1

    def _extract_corpus_statistics(self, hypotheses: Any, references: Any) -> Any:
        return hypotheses


def sacrebleus(kind: str) -> Test:
    """Return sacrebleu's paired test: ``bs`` or ``ar``."""

    def p(rows: Float64, samples: int, seed: int) -> float:
        os.environ["SACREBLEU_SEED"] = str(seed + 1)
        systems = [(str(i), rows[:, i].astype(int).tolist()) for i in range(2)]
        _, scores = PairedTest(
            systems, {"bleu": StoredStatistics()}, None, test_type=kind, n_samples=samples
        )()
        return float(scores["BLEU"][1].p_value)

    return p


def p_values(test: Test, pair: Pair, number: int, samples: int, seed: int = 0) -> Float64:
    """Return the p-values of a test on many pairs of systems; equal seeds give equal pairs."""
    generator = np.random.default_rng(seed)
    return np.array([test(pair(generator), samples, i) for i in range(number)])


def rejections(p: Float64, level: float) -> float:
    """Return the share of p-values that are up to a level."""
    return float((p <= level).mean())


def bound(level: float, number: int) -> float:
    """Return the level and two standard errors of a share of that size."""
    return level + 2 * math.sqrt(level * (1 - level) / number)


def distance_from_uniform(p: Float64) -> float:
    """Return the largest distance between the distribution of p and the uniform one."""
    below = np.arange(p.size + 1) / p.size
    ordered = np.sort(p)
    return float(max((below[1:] - ordered).max(), (ordered - below[:-1]).max()))


def excess(p: Float64) -> float:
    """Return by how much more often p is up to any level than the level says.

    Errors are counted in whole numbers: two systems may have as many, and p is 1 then. Such a test
    rejects less often than it may, and its p-values are not uniform, but nowhere too small.
    """
    return float((np.arange(1, p.size + 1) / p.size - np.sort(p)).max())


def report(
    name: str, test: Test, pair: Pair, options: argparse.Namespace, most: int | None = None
) -> None:
    """Print a row of the table, of all pairs or of the first ones."""
    number = min(options.nulls, most or options.nulls)
    p_values(test, pair, 1, options.samples)  # compiles what is to be compiled
    start = cpu()
    p = p_values(test, pair, number, options.samples, options.seed)
    milliseconds = 1000 * (cpu() - start) / number
    cells = [name]
    for level in LEVELS:
        share = rejections(p, level)
        cells.append(f"{share:.4f} ± {math.sqrt(share * (1 - share) / number):.4f}")
    cells += [f"{distance_from_uniform(p):.3f}", f"{excess(p):.3f}", f"{milliseconds:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def coverage(
    population: Population, size: int, samples: int, number: int, seed: int = 0
) -> tuple[float, float]:
    """Return how often 95% intervals hold the score of all sentences, and its standard error."""
    generator, inside = np.random.default_rng(seed), 0
    truth = float(population.score(population.rows[:, 0].sum(axis=0)))
    for i in range(number):
        drawn = population.sentences(size, generator)[:, :1]
        scores = bootstrap_scores(drawn, population.score, samples, i)
        low, high = np.percentile(scores, INTERVAL)
        inside += low <= truth <= high
    share = inside / number
    return share, math.sqrt(share * (1 - share) / number)


def heading(title: str) -> None:
    levels = " | ".join(f"p ≤ {level}" for level in LEVELS)
    print(f"\n{title}\n\n| test | {levels} | distance | excess | ms |\n|{'---|' * 7}")


def time_tests(population: Population, metric: str) -> None:
    """Print what a test of 1,000 sentences with 10,000 samples or trials takes."""
    rows = population.sentences(1000, np.random.default_rng(0))[:, :2]
    for test in (bootstrap_test, randomization_test):
        seconds = []
        for seed in range(3):
            start = cpu()
            test(rows[:, :1], rows[:, 1:], population.score, 10_000, seed)
            seconds.append(cpu() - start)
        print(f"{metric}, {test.__name__}: {min(seconds):.3f} s")


def compare_one_run(metric: str, population: Population, options: argparse.Namespace) -> None:
    """Print how often pairs of single runs are found to differ."""
    rows, score, size = population.rows, population.score, options.sentences
    unlike = unlike_but_equal(rows[:, 0], rows[:, 3], rows[:, 4], score)
    equal = Population(np.stack([rows[:, 0], unlike], axis=1), score)
    exchanged, better = (Population(rows[:, [0, other]], score) for other in (1, 2))
    planted = abs(np.diff(score(better.rows.sum(axis=0))).item())
    pairs: dict[str, Pair] = {
        "null, translations swapped at random": lambda g: swap(exchanged.sentences(size, g), g),
        "null, equal scores and unlike systems": lambda g: equal.sentences(size, g),
        f"power, a planted difference of {planted:.2f}": lambda g: better.sentences(size, g),
    }
    theirs = {"sacrebleu's bs": sacrebleus("bs"), "sacrebleu's ar": sacrebleus("ar")}
    for title, pair in pairs.items():
        heading(f"{metric}: {title}")
        report("bootstrap", own(bootstrap_test, score), pair, options)
        report("randomization", own(randomization_test, score), pair, options)
        for name, test in theirs.items() if metric == "bleu" else ():
            report(name, test, pair, options, options.sacrebleu)


def write_table(populations: dict[str, Population], options: argparse.Namespace) -> None:
    """Write how often randomisation rejects nulls of a metric, and what intervals hold."""
    size = options.sentences
    with open(options.table, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        shares = [f"p<={level}" for level in LEVELS]
        writer.writerow(["metric", "of", "number", *shares, "distance", "excess", "covered"])
        for metric, population in populations.items():
            rows, score = population.rows, population.score
            unlike = unlike_but_equal(rows[:, 0], rows[:, 3], rows[:, 4], score)
            exchanged = Population(rows[:, [0, 1]], score)
            equal = Population(np.stack([rows[:, 0], unlike], axis=1), score)
            pairs: dict[str, Pair] = {
                "swapped": lambda g, of=exchanged: swap(of.sentences(size, g), g),
                "unlike": lambda g, of=equal: of.sentences(size, g),
            }
            for name, pair in pairs.items():
                test = own(randomization_test, score)
                p = p_values(test, pair, options.nulls, options.samples, options.seed)
                found = [*(rejections(p, level) for level in LEVELS)]
                found += distance_from_uniform(p), excess(p)
                shown = [f"{x:.4f}" for x in found]
                writer.writerow([metric, name, options.nulls, *shown, ""])
            share, _ = coverage(population, size, options.samples, options.nulls)
            blank = [""] * (len(LEVELS) + 2)
            writer.writerow([metric, "interval", options.nulls, *blank, f"{share:.4f}"])
            file.flush()


def compare_several_runs(
    sentences: Sequence[str], generator: np.random.Generator, options: argparse.Namespace
) -> None:
    """Print how often pairs of systems with several runs, which do not differ, are found to."""
    k, size = options.runs, options.sentences
    rates = np.clip(generator.normal(0.30, 0.01, options.pool), 0.2, 0.4)
    outputs = [noisy(sentences, [rate] * len(sentences), generator) for rate in rates]
    pool = measure("bleu", outputs, sentences)
    spread = pool.score(pool.rows.sum(axis=0)).std(ddof=1)

    def of_pool(g: np.random.Generator) -> Float64:
        return pool.sentences(size, g)[:, g.permutation(options.pool)[: 2 * k]]

    pairs: dict[str, Pair] = {
        "shuffled within each sentence": lambda g: swap(of_pool(g), g),
        f"runs of one pool with s_opt {spread:.2f}": of_pool,
    }
    for title, pair in pairs.items():
        heading(f"bleu, {k} runs each: null, {title}")
        report("bootstrap", own(bootstrap_test, pool.score, k), pair, options)
        report("randomization", own(randomization_test, pool.score, k), pair, options)
        report("whole runs", of_runs(pool.score, k), pair, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nulls", type=int, default=2000)
    parser.add_argument("--small", action="store_true", help="a few pairs, to see that it runs")
    parser.add_argument(
        "--sacrebleu", type=int, default=500, help="pairs that its slower tests take"
    )
    parser.add_argument("--metrics", nargs="+", choices=TUNED)
    parser.add_argument("--table", help="a file for what tune reports, of every metric")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3, help="of each system")
    parser.add_argument("--pool", type=int, default=40, help="runs that are drawn from")
    options = parser.parse_args()
    if options.small:
        options.nulls, options.sacrebleu, options.samples, options.pool = 50, 5, 100, 8
    generator = np.random.default_rng(1)
    sentences = references()
    outputs = [
        noisy(sentences, [rate] * len(sentences), generator)
        for rate in (0.30, 0.36, 0.32, 0.15, 0.50)
    ]
    options.metrics = options.metrics or (TUNED if options.table else METRICS)
    populations = {metric: measure(metric, outputs, sentences) for metric in options.metrics}
    if options.table:
        write_table(populations, options)
        return
    bounds = [f"{bound(level, options.nulls):.4f} at {level}" for level in LEVELS]
    print(
        f"{options.nulls:,} pairs (sacrebleu's tests: the first {options.sacrebleu:,}), "
        f"{options.sentences} sentences each, {options.samples:,} samples or trials. A null may be "
        f"rejected at most, level and two standard errors: {', '.join(bounds)}. The distance of "
        f"uniform p-values is below {1.36 / math.sqrt(options.nulls):.3f} in 95%."
    )
    for metric, population in populations.items():
        compare_one_run(metric, population, options)
    if "bleu" in options.metrics:
        compare_several_runs(sentences, generator, options)
    print(f"\nHow often 95% intervals of {options.sentences} sentences hold the true score:")
    for metric, population in populations.items():
        found = coverage(population, options.sentences, options.samples, options.nulls)
        print(f"{metric}: {found[0]:.4f} ± {found[1]:.4f}", flush=True)
    print("\nTime of a test, 1,000 sentences, 10,000 samples or trials:")
    for metric, population in populations.items():
        time_tests(population, metric)


if __name__ == "__main__":
    main()
