"""The best that could be chosen of k-best lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import ELSEWHERE
from torchtune_smt.metrics.bleu import BleuPlusOne, BleuReferences
from torchtune_smt.metrics.corpus import bleu_scores, bleu_words

# A change that gains less is rounding.
_TOLERANCE: Final = 1e-9


class Oracle(NamedTuple):
    """A choice of one hypothesis of each list: its corpus BLEU (0..100), and places from 0."""

    score: float
    chosen: Int64


def oracle_bleu(
    lists: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "none",
    lowercase: bool = False,
) -> Oracle:
    """Choose of each list the hypothesis that makes corpus BLEU largest, as far as can be found.

    Corpus BLEU does not decompose over sentences. So choices start with the first of each list, and
    once more with the best by BLEU+1, and each sentence in turn takes the hypothesis that gains the
    most corpus BLEU, until no change of one sentence gains anything (hill climbing; Li and
    Khudanpur 2009). The better end is returned: no less than the score of the first hypotheses.

    lists: the hypotheses of each sentence, one or more.
    references: ``references[i]``: those of sentence i.
    tokenize, lowercase: as for `torchtune_smt.metrics.corpus.corpus_bleu`.
    """
    prepared, words = bleu_words(tokenize, lowercase), Vocabulary()
    hypotheses = [[" ".join(prepared(line)) for line in entries] for entries in lists]
    given = KBestLists.of_strings(hypotheses, words=words)
    rows_of_words = [[prepared(line) for line in row] for row in references]
    # sacrebleu takes references that are empty, and so does the score that this stands beside.
    bound = BleuReferences([row if any(row) else ELSEWHERE for row in rows_of_words], words)
    counts = np.concatenate([bound.statistics(kbest) for kbest in given])
    gains = BleuPlusOne().score(counts)
    rows = counts.astype(np.float64)
    begin = given.begin
    first = begin[:-1].copy()
    best = np.array([b + gains[b:e].argmax() for b, e in pairwise(begin)])
    ends = [_climb(rows, begin, start) for start in (first, best)]
    score, chosen = max(ends, key=lambda end: end[0])
    return Oracle(score, chosen - first)


def best_choice(statistics: Float64, begin: Int64, score: Callable[[Float64], Float64]) -> Int64:
    """Return a choice of one hypothesis of each list (int64 [S]) that makes a score large.

    From the first ones all lists move at once to what each by itself would gain most by, as long as
    that gains; then hill climbing as in `oracle_bleu`. Where scores are sums over sentences, as
    those of an error rate, none is better. `score` is of sums of statistics [..., k].
    """
    chosen = begin[:-1].copy()
    owner = np.repeat(np.arange(chosen.size), np.diff(begin))
    top = -np.inf
    while True:
        sums = statistics[chosen].sum(axis=0)
        found = float(score(sums))
        if found <= top + _TOLERANCE:
            break
        top, last = found, chosen
        scores = score(sums - statistics[chosen[owner]] + statistics)
        best = np.maximum.reduceat(scores, begin[:-1])
        hits = np.flatnonzero(scores >= best[owner])
        chosen = hits[np.searchsorted(hits, begin[:-1])]
    return _climb(statistics, begin, last, score)[1]


def _climb(
    rows: Float64,
    begin: Int64,
    chosen: Int64,
    score_sums: Callable[[Float64], Float64] = bleu_scores,
) -> tuple[float, Int64]:
    chosen = chosen.copy()
    sums = rows[chosen].sum(axis=0)
    score = float(score_sums(sums))
    moved = True
    while moved:
        moved = False
        for s, old in enumerate(chosen.tolist()):
            others = sums - rows[old] + rows[begin[s] : begin[s + 1]]
            scores = score_sums(others)
            place = int(scores.argmax())
            if scores[place] > score + _TOLERANCE:
                chosen[s], sums, score = begin[s] + place, others[place], float(scores[place])
                moved = True
    return score, chosen
