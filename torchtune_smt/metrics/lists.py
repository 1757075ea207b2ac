"""Gains of k-best lists: those a metric gives, expected ones, and those that a file has."""

from __future__ import annotations

import logging
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from torchtune_smt.core.accepts import Checked, accepting, check_arguments, least, one_of
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError, shown
from torchtune_smt.core.text import BLANKS, finite_number, split_words, whole_number
from torchtune_smt.core.textio import iterate_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.rerank import best_first
from torchtune_smt.metrics import base
from torchtune_smt.metrics.bleu import BleuPlusOne, BleuReferences


def measured(
    lists: KBestLists, references: base.References, metric: base.Metric | None = None
) -> KBestLists:
    """Return lists with the gain of each hypothesis, and statistics of the metric.

    `Mert` and `KBestMira` tune what these are of a corpus: BLEU for metrics of its family, an
    error rate, or the mean of the gains.

    lists: with words.
    references: ``references[i]``: those of the sentence whose index is i, each a list of words.
    metric: what gains are; BLEU+1 by default.

    Raises ValueError: the lists have no words, or references are not lists of lists of words.
    Raises InputError: a sentence has no reference.
    """
    words = lists.words
    if words is None:
        raise ValueError("these lists have no words")
    metric = metric or BleuPlusOne()
    last = int(lists.index.max(initial=-1)) + 1
    # Lists may be of a part of the sentences.
    base.check_shape(references, last if last <= len(lists) else max(last, len(references)))
    if base.is_of_bleu(metric):
        lists = BleuReferences(references, words).with_statistics(lists)
    return base.Judge(metric.bind(references, words), base.measure_of(metric)).judged(lists)


def minimum_risk(
    lists: KBestLists, metric: base.Metric, scale: float = 3.0, k: int | None = None
) -> KBestLists:
    """Return lists with the largest expected gain first; their scores are the expected gains.

    That of hypothesis h of a list is Σ_j p_j gain(h; j): each hypothesis j of the list is taken as
    the only reference in turn, with probability p_j ∝ exp(scale · score_j). Kumar and Byrne
    (2004), "Minimum Bayes-risk decoding for statistical machine translation". Equal ones stay in
    their order. The metric prepares each hypothesis once, as it does a reference.

    lists: with words and model scores.
    metric: what gains are. To a metric of BLEU's family, an empty hypothesis is no reference: all
        gains are 0 there.
    scale: 0: all hypotheses of a list are equally probable. The larger it is, the more the first
        one is. 1 suits scores that are logarithms of probabilities; those of tuned weights may be
        too near to each other for it.
    k: hypotheses of a list that are kept at most; by default all.

    Raises InputError: the metric does not compare words.
    Raises ValueError: the scale or `k` is out of range; the lists have no words or scores.
    """
    least(0).check("scale", scale)
    if isinstance(metric, ExternalScores):
        raise InputError(
            "metric: ExternalScores reads gains against the references, and minimum risk takes "
            "each hypothesis for one; choose another metric, as in metric=bleu_plus_one"
        )
    if lists.words is None or lists.score is None:
        raise ValueError("these lists have no words, or no scores")
    gains = [np.empty(0), *(_expected_gains(kbest, metric, scale) for kbest in lists)]
    return best_first(lists, np.concatenate(gains), k)


def _expected_gains(kbest: KBest, metric: base.Metric, scale: float) -> Float64:
    """Return the expected gain (float64 [n]) of each hypothesis of a list with words and scores."""
    assert kbest.words is not None and kbest.score is not None
    expected = np.zeros(len(kbest))
    strings = [kbest.words.names(kbest.hypothesis(h)) for h in range(len(kbest))]
    # Metrics of errors know what is wrong with any word where there should be none.
    wordless = isinstance(metric, base.CorpusMetric)
    references = [h for h, words in enumerate(strings) if words or wordless]
    if not references:
        return expected
    share = np.exp(scale * (kbest.score - kbest.score.max()))
    share /= share.sum()
    bound = metric.bind([[strings[h]] for h in references], kbest.words)
    # What is known of gains and matches is about other references.
    kbest = replace(kbest, gain=None, statistics=None)
    for j, h in enumerate(references):
        expected += share[h] * base.gains_of(bound, replace(kbest, index=j))
    return expected


_log = logging.getLogger(__name__)


class ExternalScores(Checked):
    """Scores of a metric that was run elsewhere (COMET, say), one a hypothesis.

    They suit stored k-best lists, whose hypotheses are known beforehand. Larger is better, and
    a pair sampler's threshold is in the units of the file.

    path: plain or ``.gz``, a line ``sentence ||| hypothesis ||| score`` for each hypothesis, in any
        order: the sentence's number counted from 0, the words as they stand in the k-best list, a
        number. A line may occur twice.
    missing ("error", "worst"): what becomes of a hypothesis that is not in the file. "worst": it
        takes the lowest score of its sentence, and a warning says so at the 1st, 10th, 100th ...
        such hypothesis.

    Raises InputError: the file cannot be read; a line is bad, or scores a hypothesis otherwise than
        an earlier one.
    """

    accepts = accepting(missing=one_of("error", "worst"))
    by_number: ClassVar[bool] = True

    def __init__(
        self, path: str | PathLike[str], missing: Literal["error", "worst"] = "error"
    ) -> None:
        check_arguments(type(self), {"missing": missing})
        self.path = path
        self.missing: Literal["error", "worst"] = missing
        self.scores = _read_scores(path)
        self._bound: BoundExternalScores | None = None
        self.name = Path(path).name.partition(".")[0]

    def bind(self, references: base.References, words: Vocabulary) -> BoundExternalScores:
        """Look the words up once; raise InputError where a sentence of the file is not there."""
        last = max(self.scores, default=-1)
        if last >= len(references):
            raise InputError(
                f"scores sentence {last} (counted from 0), and there are {len(references)} "
                "sentences; score the hypotheses of the set that is tuned on",
                path=self.path,
            )
        # Once for all parts of a set.
        if self._bound is None or self._bound.words is not words:
            self._bound = BoundExternalScores(self, words)
        return self._bound


class BoundExternalScores:
    """`ExternalScores` in the ids of one vocabulary.

    missing: how many hypotheses took their sentence's worst score so far.
    """

    def __init__(self, metric: ExternalScores, words: Vocabulary) -> None:
        self._metric, self.words = metric, words
        self._scores: dict[int, dict[bytes, float]] = {}
        for sentence, scores in metric.scores.items():
            split = [hypothesis.split(" ") if hypothesis else [] for hypothesis in scores]
            ids = words.intern([word for hypothesis in split for word in hypothesis])
            ends = np.cumsum([len(hypothesis) for hypothesis in split])
            keys = [part.tobytes() for part in np.split(ids, ends[:-1])]
            self._scores[sentence] = dict(zip(keys, scores.values(), strict=True))
        self._worst = {sentence: min(scores.values()) for sentence, scores in self._scores.items()}
        self.n_missing = 0

    def gains(self, kbest: KBest) -> Float64:
        """Return the score (float64 [k]) of each hypothesis.

        Raises InputError: the file has no score of a hypothesis, or, with ``missing="worst"``, none
            of the sentence.
        """
        scores = self._scores.get(kbest.index, {})
        gains = np.empty(len(kbest))
        for h in range(len(kbest)):
            score = scores.get(kbest.hypothesis(h).tobytes())
            gains[h] = self._replacement(kbest, h) if score is None else score
        return gains

    def _replacement(self, kbest: KBest, h: int) -> float:
        """Return the gain of a hypothesis without a score."""
        text = " ".join(self.words.names(kbest.hypothesis(h)))
        if self._metric.missing == "error" or kbest.index not in self._worst:
            raise InputError(
                f"has no score of '{text}', a hypothesis of sentence {kbest.index} (counted from "
                "0): score it, or any of its sentence, whose lowest missing=worst gives it",
                path=self._metric.path,
            )
        self.n_missing += 1
        if 10 ** (len(str(self.n_missing)) - 1) == self.n_missing:
            _log.warning(
                "%s: %d hypotheses had no score and took the lowest of their sentence, lastly "
                "'%s' of sentence %d",
                self._metric.path,
                self.n_missing,
                shown(text),
                kbest.index,
            )
        return self._worst[kbest.index]


def _read_scores(path: str | PathLike[str]) -> dict[int, dict[str, float]]:
    """Return the scores of a file by sentence and hypothesis (its words joined by a blank)."""
    scores: dict[int, dict[str, float]] = {}
    for number, line in enumerate(iterate_lines(path), start=1):
        # Taken apart from both ends: what is between them is the hypothesis, whatever it holds.
        first, _, rest = line.partition("|||")
        middle, bar, last = rest.rpartition("|||")
        index, score = whole_number(first.strip(BLANKS)), finite_number(last.strip(BLANKS))
        if not bar or index is None or score is None:
            message = (
                "is no `sentence ||| hypothesis ||| score`, with the number of the sentence, from "
                f"0, and a finite number as its score: {line!r}"
            )
            raise InputError(message, path=path, line=number)
        hypothesis = " ".join(split_words(middle))
        known = scores.setdefault(index, {}).setdefault(hypothesis, score)
        if known != score:
            message = f"scores a hypothesis {score} that an earlier line scores {known}; keep one"
            raise InputError(message, path=path, line=number)
    return scores
