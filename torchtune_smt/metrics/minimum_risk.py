"""Minimum Bayes risk: the hypothesis that is best on average if any other may be right."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.rerank import best_first
from torchtune_smt.metrics.base import Metric, gains_of
from torchtune_smt.metrics.external import ExternalScores


def minimum_risk(
    lists: KBestLists, metric: Metric, scale: float = 1.0, k: int | None = None
) -> KBestLists:
    """Return lists with the largest expected gain first; their scores are the expected gains.

    That of hypothesis h of a list is Σ_j p_j gain(h; j): each hypothesis j of the list is taken as
    the only reference in turn, with probability p_j ∝ exp(scale · score_j). Kumar and Byrne
    (2004), "Minimum Bayes-risk decoding for statistical machine translation". Equal ones stay in
    their order. The metric prepares each hypothesis once, as it does a reference.

    Parameters
    ----------
    lists : KBestLists
        With words and model scores.
    metric : Metric
        What gains are. An empty hypothesis is no reference: all gains are 0 there.
    scale : float
        0: all hypotheses of a list are equally probable. The larger it is, the more the first one
        is.
    k : int, optional
        Hypotheses of a list that are kept at most; by default all.

    Raises
    ------
    InputError
        The metric does not compare words.
    ValueError
        The scale is no finite number, 0 or more; the lists have no words or scores; `k` is below 1,
        or a list is empty.
    """
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale must be a finite number, 0 or more, not {scale}")
    if isinstance(metric, ExternalScores):
        raise InputError(
            "metric: ExternalScores reads gains against the references, and minimum risk takes "
            "each hypothesis for one; choose another metric, as in metric=bleu_plus_one"
        )
    if lists.words is None or lists.score is None:
        raise ValueError("these lists have no words, or no scores")
    gains = [np.empty(0), *(_expected_gains(kbest, metric, scale) for kbest in lists)]
    return best_first(lists, np.concatenate(gains), k)


def _expected_gains(kbest: KBest, metric: Metric, scale: float) -> Float64:
    """Return the expected gain (float64 [n]) of each hypothesis of a list with words and scores."""
    assert kbest.words is not None and kbest.score is not None
    expected = np.zeros(len(kbest))
    strings = [kbest.words.names(kbest.hypothesis(h)) for h in range(len(kbest))]
    references = [h for h, words in enumerate(strings) if words]
    if not references:
        return expected
    share = np.exp(scale * (kbest.score - kbest.score.max()))
    share /= share.sum()
    bound = metric.bind([[strings[h]] for h in references], kbest.words)
    # What is known of gains and matches is about other references.
    kbest = replace(kbest, gain=None, statistics=None)
    for j, h in enumerate(references):
        expected += share[h] * gains_of(bound, replace(kbest, index=j))
    return expected
