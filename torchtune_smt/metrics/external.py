"""Gains that something else has computed, read from a file."""

from __future__ import annotations

import logging
from os import PathLike
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError, shown
from torchtune_smt.core.text import BLANKS, finite_number, split_words, whole_number
from torchtune_smt.core.textio import iterate_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.metrics.base import References

_log = logging.getLogger(__name__)


class ExternalScores:
    """Scores of a metric that was run elsewhere (COMET, say), one a hypothesis.

    They suit stored k-best lists, whose hypotheses are known beforehand. Larger is better, and
    a pair sampler's threshold is in the units of the file.

    Parameters
    ----------
    path : path
        Plain or ``.gz``, a line ``sentence ||| hypothesis ||| score`` for each hypothesis, in
        any order: the sentence's number counted from 0, the words as they stand in the k-best
        list, a number. A line may occur twice.
    missing : {"error", "worst"}
        What becomes of a hypothesis that is not in the file. "worst": it takes the lowest score
        of its sentence, and a warning says so at the 1st, 10th, 100th ... such hypothesis.

    Raises
    ------
    InputError
        The file cannot be read, or a line has not three fields, a bad number, or another score
        for a hypothesis that an earlier line has scored.
    ValueError
        `missing` is neither.
    """

    by_number: ClassVar[bool] = True

    def __init__(
        self, path: str | PathLike[str], missing: Literal["error", "worst"] = "error"
    ) -> None:
        if missing not in ("error", "worst"):
            raise ValueError(f"missing must be error or worst, not {missing}")
        self.path = path
        self.missing: Literal["error", "worst"] = missing
        self.scores = _read_scores(path)
        self._bound: BoundExternalScores | None = None
        self.name = Path(path).name.partition(".")[0]

    def bind(self, references: References, words: Vocabulary) -> BoundExternalScores:
        """Look the words up once; of the references only their number counts.

        Raises
        ------
        InputError
            The file scores a sentence that is not there.
        """
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

    Attributes
    ----------
    words : Vocabulary
    missing : int
        How many hypotheses took their sentence's worst score so far.
    """

    def __init__(self, metric: ExternalScores, words: Vocabulary) -> None:
        self._metric = metric
        self.words = words
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

        Raises
        ------
        InputError
            The file has no score of a hypothesis, or, with ``missing="worst"``, none of the
            sentence.
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
            cure = "score it"
            if kbest.index in self._worst:
                cure += ", or set missing=worst to give it the lowest score of its sentence"
            raise InputError(
                f"has no score of '{text}', a hypothesis of sentence {kbest.index} (counted from "
                f"0): {cure}",
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
        try:
            _add_line(scores, line)
        except ValueError as error:
            raise InputError(str(error), path=path, line=number) from None
    return scores


def _add_line(scores: dict[int, dict[str, float]], line: str) -> None:
    """Add what one line says; raise ValueError where it makes no sense."""
    # Taken apart from both ends: what is between them is the hypothesis, whatever it holds.
    first, *rest = line.split("|||", 1)
    middle, *last = rest[0].rsplit("|||", 1) if rest else [""]
    if not last:
        raise ValueError("expected 'sentence ||| hypothesis ||| score'")
    sentence, index = first.strip(BLANKS), whole_number(first.strip(BLANKS))
    if index is None:
        raise ValueError(f"'{sentence}' is no number of a sentence; they count from 0")
    text, score = last[0].strip(BLANKS), finite_number(last[0].strip(BLANKS))
    if score is None:
        raise ValueError(f"the score '{text}' is no finite number")
    hypothesis = " ".join(split_words(middle))
    known = scores.setdefault(index, {}).setdefault(hypothesis, score)
    if known != score:
        raise ValueError(
            f"scores a hypothesis {text} that an earlier line scores {known}; keep one of them"
        )
