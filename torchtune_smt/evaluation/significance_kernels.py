"""Sums of sentence statistics over many random corpora, for the significance tests."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.core.random_kernels import below, draw, make_key


@kernel
def resampled_sums(rows: Float64, samples: int, seed: Int64) -> Float64:
    """Return the sums over corpora of n sentences that are drawn with replacement.

    rows (float64 [n, runs, statistics]): all runs see the same sentences.
    seed: names the random stream.

    Returns float64 [samples, runs, statistics]
    """
    n, runs, width = rows.shape
    key = make_key(seed)
    sums = np.zeros((samples, runs, width))
    for sample in range(samples):
        for i in range(n):
            sentence = below(draw(key, sample * n + i), n)
            for run in range(runs):
                for s in range(width):
                    sums[sample, run, s] += rows[sentence, run, s]
    return sums


@kernel
def shuffled_sums(rows: Float64, trials: int, seed: Int64) -> Float64:
    """Return the sums after a random permutation of the runs within each sentence.

    rows (float64 [n, runs, statistics])
    seed: names the random stream.

    Returns float64 [trials, runs, statistics]
    """
    n, runs, width = rows.shape
    key = make_key(seed)
    total = rows.sum(axis=0).sum(axis=0)
    sums = np.zeros((trials, runs, width))
    # Shuffled on and on: each shuffle is fair, whatever it starts from.
    order = np.arange(runs)
    counter = 0
    for trial in range(trials):
        for sentence in range(n):
            for run in range(runs - 1, 0, -1):
                other = below(draw(key, counter), run + 1)
                counter += 1
                chosen = order[other]
                order[other] = order[run]
                order[run] = chosen
                for s in range(width):
                    sums[trial, run, s] += rows[sentence, chosen, s]
        for s in range(width):
            rest = total[s]
            for run in range(1, runs):
                rest -= sums[trial, run, s]
            sums[trial, 0, s] = rest
    return sums
