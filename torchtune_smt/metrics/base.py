"""What a sentence-level metric is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from torchtune_smt.core.accepts import declared
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.checks import checked_numbers
from torchtune_smt.core.errors import InputError, shown
from torchtune_smt.core.text import split_words
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.sentences import ELSEWHERE, FileNumbers


class Score(NamedTuple):
    """How good the best hypotheses of a set are: by the metric that is tuned, and corpus BLEU.

    Weights are chosen by the first; larger is better. Both are one number where BLEU (0..100) is
    the corpus form of the metric.
    """

    tuned: float
    bleu: float


References = Sequence[Sequence[list[str]]]
"""``references[i]``: the references of sentence i, each a list of tokens."""


class BoundMetric(Protocol):
    """A metric that knows the references of one set of sentences."""

    def gains(self, kbest: KBest) -> Float64:
        """Return a gain (float64, larger is better) for each hypothesis of a k-best list.

        The references are those of sentence ``kbest.index``.
        """
        ...


class Metric(Protocol):
    """A way to measure how good a hypothesis of one sentence is."""

    def bind(self, references: References, words: Vocabulary) -> BoundMetric:
        """Prepare the references once, for hypotheses written in the ids of `words`.

        Nobody asks for the gains of sentences that are tuned on elsewhere, as those of other
        shards: such have one reference without words here.
        """
        ...


def bind_metric(
    metric: Metric,
    references: References,
    words: Vocabulary,
    numbers: FileNumbers | None = None,
) -> BoundMetric:
    """Return a metric for lists of sentences with these references.

    Where no sentence has any, the lists must have BLEU's statistics, and the metric must be
    computed from them alone: its class says so by ``from_statistics = True``.

    Parameters
    ----------
    numbers : FileNumbers, optional
        A metric that knows more of the sentences than their references (its class says so by
        ``by_number = True``) is bound, and asked, as if all sentences of the files were there.

    Raises
    ------
    InputError
        The metric needs words, and there are no references.
    """
    if any(references):
        if numbers is None or not declared(metric, "by_number", "bind"):
            return metric.bind(references, words)
        return _ByNumber(metric, references, words, numbers)
    if not is_of_bleu(metric):
        raise InputError(
            f"metric: {type(metric).__name__} needs the words of the hypotheses, and scores.dat "
            "has only BLEU's statistics; choose a metric of BLEU's family, or give n-best lists"
        )
    return metric.bind([], words)


def is_of_bleu(metric: Metric) -> bool:
    """Return whether corpus BLEU is what a metric is of a corpus; of others it is their mean."""
    return bool(declared(metric, "from_statistics", "bind"))


def metric_name(metric: Metric) -> str:
    """Return what a metric is called where scores are shown."""
    name = "BLEU" if is_of_bleu(metric) else getattr(metric, "name", type(metric).__name__)
    return str(name)


def with_gains(metric: BoundMetric, lists: KBestLists) -> KBestLists:
    """Return lists with the gains that a metric gives them.

    Raises
    ------
    InputError
        They are not one number for each hypothesis of a list.
    """
    gains = [np.empty(0), *(gains_of(metric, kbest) for kbest in lists)]
    return lists.with_gains(np.concatenate(gains))


def gains_of(metric: BoundMetric, kbest: KBest) -> Float64:
    """Return what a metric, perhaps of a user's class, gives the hypotheses of a list.

    Raises
    ------
    InputError
        It is not one number for each.
    """
    given: Any = metric.gains(kbest)
    must = (
        f"the metric {type(metric).__name__} must return a number for each hypothesis of sentence "
        f"{kbest.index},"
    )
    return checked_numbers(np.asarray(given), (len(kbest),), must, kinds="biuf")


class _ByNumber:
    """A metric that is asked for the gains of sentences by their numbers in files."""

    def __init__(
        self, metric: Metric, references: References, words: Vocabulary, numbers: FileNumbers
    ) -> None:
        self._numbers = numbers.of
        placed: list[Sequence[list[str]]] = [ELSEWHERE] * numbers.n_sentences
        for index, number in numbers.of.items():
            placed[number] = references[index]
        self._bound = metric.bind(placed, words)

    def gains(self, kbest: KBest) -> Float64:
        return self._bound.gains(replace(kbest, index=self._numbers[kbest.index]))


_SHAPE = "references[i] must be a list of references of sentence i, and each a list of words"


def check_shape(references: Any, n_sentences: int) -> None:
    """Raise ValueError where references are not lists of lists of words, for each sentence."""
    for index, alternatives in enumerate(references):
        flat = isinstance(alternatives, str) or any(isinstance(one, str) for one in alternatives)
        if flat or not all(_is_word(word) for one in alternatives for word in one):
            raise ValueError(
                f'{_SHAPE}, as in [[["a", "dog"], ["the", "dog"]], [["yes"]]]; those of sentence '
                f"{index} are {shown(repr(alternatives))}"
            )
    if len(references) != n_sentences:
        raise ValueError(
            f"there are references of {len(references)} sentences, and lists of {n_sentences}"
        )


def _is_word(word: Any) -> bool:
    """Say whether something is one word, and no whole sentence."""
    return isinstance(word, str) and split_words(word) == [word]


def check_references(references: References) -> None:
    """Raise InputError where a sentence has no references, or only empty ones."""
    for index, alternatives in enumerate(references):
        if alternatives is not ELSEWHERE and not any(alternatives):
            raise InputError(
                f"sentence {index} (counted from 0) has no reference that is not empty; "
                "every sentence needs one"
            )
