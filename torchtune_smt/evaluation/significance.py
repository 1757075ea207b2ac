"""Significance of a difference of corpus scores, from the statistics of single sentences.

A corpus score is a function of statistics that are summed over the sentences. So the score of
another corpus, made of the same sentences, costs no more than the sums. The statistic of all tests
is the difference of two systems' scores, and where a system was tuned several times, of the means
over its runs (Clark et al. 2011). All p-values are two-sided, and 1 for systems that are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, permutations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.seeds import stream_seed
from torchtune_smt.evaluation import significance_kernels as kernels

# Differences that are equal in theory differ by rounding.
TOLERANCE: Final = 1e-9

Score = Callable[[Float64], Float64]
"""Takes sums of statistics [..., statistics] and returns scores [...]."""


class PValue(NamedTuple):
    """What a test found.

    Attributes
    ----------
    value : float
        The probability of a difference at least this large if there were none.
    trials : int
        The random trials, or all arrangements there are.
    exact : bool
        All arrangements were counted.
    """

    value: float
    trials: int
    exact: bool


def bootstrap_test(
    baseline: Float64, system: Float64, score: Score, samples: int, seed: int
) -> PValue:
    """Return p of the paired bootstrap: would other sentences show a difference, too?

    Sentences are drawn with replacement, the same ones for all runs. The differences Δ* that come
    out scatter around the observed one, Δ, as Δ does around the true one. So p is the share of
    samples in which Δ* is at least as far from Δ as Δ is from 0. The observed corpus counts as one
    of them, (c + 1) / (samples + 1), which keeps p above 0 (Koehn 2004; centred as in Efron and
    Tibshirani 1993, chapter 16).

    Parameters
    ----------
    baseline, system : float64 [n, runs, statistics]
        Of n sentences; the numbers of runs may differ.
    score : callable
        See `Score`.
    samples : int
        1 or more.
    seed : int
        0 or more.
    """
    rows = np.concatenate([baseline, system], axis=1)
    runs = baseline.shape[1]
    observed = _difference(score(rows.sum(axis=0)), runs)
    sums = kernels.resampled_sums(rows, samples, stream_seed([seed]))
    centred = _difference(score(sums), runs) - observed
    return _with_observed(_as_large(centred, observed))


def randomization_test(
    baseline: Float64, system: Float64, score: Score, trials: int, seed: int
) -> PValue:
    """Return p of approximate randomisation: does it matter which system wrote a sentence?

    Under the null hypothesis it does not, and the translations of each sentence can be shuffled
    among all runs of both systems: with a run each, they are swapped or not (Noreen 1989). With
    several, this is the stratified test of Clark et al. (2011). p is the share of arrangements
    whose difference is as large as the observed one. If there are no more of them than `trials`,
    as where few sentences differ, they are all counted; otherwise that many are drawn, and the
    observed one is counted with them: (c + 1) / (trials + 1).

    Parameters
    ----------
    baseline, system : float64 [n, runs, statistics]
        Of n sentences; the numbers of runs may differ.
    score : callable
        See `Score`.
    trials : int
        1 or more.
    seed : int
        0 or more.
    """
    rows = np.concatenate([baseline, system], axis=1)
    runs = baseline.shape[1]
    observed = _difference(score(rows.sum(axis=0)), runs)
    differs = (rows != rows[:, :1]).any(axis=(1, 2))
    same = rows[~differs].sum(axis=0)
    rows = rows[differs]
    if math.factorial(rows.shape[1]) ** len(rows) <= trials:
        found = _as_large(_difference(score(same + _arranged_sums(rows)), runs), observed)
        return _of_all(found)
    sums = kernels.shuffled_sums(rows, trials, stream_seed([seed]))
    return _with_observed(_as_large(_difference(score(same + sums), runs), observed))


def runs_test(baseline: Float64, system: Float64, trials: int, seed: int) -> PValue:
    """Return p of a permutation test of whole runs: would other runs show a difference, too?

    It asks whether the two sets of scores are exchangeable, and knows nothing of sentences. All
    divisions of the runs among the systems are counted, if there are no more than `trials`;
    otherwise that many are drawn, as in `randomization_test`.

    Parameters
    ----------
    baseline, system : float64 [runs]
        Corpus scores of the runs; their numbers may differ.
    trials : int
        1 or more.
    seed : int
        0 or more.
    """
    scores = np.concatenate([baseline, system])
    observed = _difference(scores, baseline.size)
    if math.comb(scores.size, baseline.size) <= trials:
        chosen = np.array(list(combinations(range(scores.size), baseline.size)))
        first = scores[chosen].sum(axis=1)
        means = first / baseline.size, (scores.sum() - first) / system.size
        return _of_all(_as_large(means[1] - means[0], observed))
    shuffled = np.tile(scores, (trials, 1))
    np.random.default_rng(seed).permuted(shuffled, axis=1, out=shuffled)
    return _with_observed(_as_large(_difference(shuffled, baseline.size), observed))


def bootstrap_scores(rows: Float64, score: Score, samples: int, seed: int) -> Float64:
    """Return the scores of corpora drawn with replacement.

    Parameters
    ----------
    rows : float64 [n, runs, statistics]
    score, samples, seed
        As in `bootstrap_test`; the corpora of equal seeds have the same sentences.

    Returns
    -------
    float64 [samples, runs]
    """
    return score(kernels.resampled_sums(rows, samples, stream_seed([seed])))


def _difference(scores: Float64, runs: int) -> Float64:
    """Return how far the mean of the last scores is above that of the first `runs`."""
    difference: Float64 = scores[..., runs:].mean(axis=-1) - scores[..., :runs].mean(axis=-1)
    return difference


def _as_large(differences: Float64, observed: Float64) -> Bool:
    return np.abs(differences) >= np.abs(observed) - TOLERANCE


def _of_all(found: Bool) -> PValue:
    return PValue(float(found.mean()), found.size, exact=True)


def _with_observed(found: Bool) -> PValue:
    return PValue((int(found.sum()) + 1) / (found.size + 1), found.size, exact=False)


def _arranged_sums(rows: Float64) -> Float64:
    """Return the sums over the sentences after each permutation of the runs within each.

    Parameters
    ----------
    rows : float64 [n, runs, statistics]

    Returns
    -------
    float64 [(runs!)^n, runs, statistics]
    """
    n, runs, _ = rows.shape
    orders: Int64 = np.array(list(permutations(range(runs))))
    # The arrangement's number, written with a digit for each sentence.
    number: NDArray[np.int64] = np.arange(len(orders) ** n)
    sums = np.zeros((number.size, *rows.shape[1:]))
    for sentence in rows:
        sums += sentence[orders[number % len(orders)]]
        number //= len(orders)
    return sums
