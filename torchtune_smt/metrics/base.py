"""What a sentence-level metric is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.accepts import Checked, declared, one_of
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.checks import checked_numbers
from torchtune_smt.core.errors import InputError, shown
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.text import UNKNOWN_WORDS, split_words
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.measure import BLEU, Measure, mean
from torchtune_smt.kbest.sentences import ELSEWHERE, FileNumbers


def _without_bpe(words: list[str]) -> list[str]:
    """Join pieces: those of subword-nmt end in ``@@``, words of SentencePiece begin with ``▁``."""
    line = " ".join(words)
    if "▁" in line:
        line = line.replace(" ", "").replace("▁", " ")
    return split_words(f"{line} ".replace("@@ ", ""))


@cache
def _detokenizer() -> Any:
    # It takes long to import.
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang="en")


FILTERS: Final[dict[str, Callable[[list[str]], list[str]]]] = {
    "unk": lambda words: [word for word in words if word not in UNKNOWN_WORDS],
    "bpe": _without_bpe,
    "detokenize": lambda words: split_words(_detokenizer().detokenize(words)),
    "lowercase": lambda words: [word.lower() for word in words],
}


def filtered(words: list[str], names: Sequence[str]) -> list[str]:
    """Return words as some filters leave them, in the order of their names."""
    for name in names:
        words = FILTERS[name](words)
    return words


T = TypeVar("T")


class Score(NamedTuple):
    """How good the best hypotheses of a set are: by the metric that is tuned, and corpus BLEU.

    Weights are chosen by the first; larger is better (an error rate has its sign changed).
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


class Metric(Protocol):
    """A way to measure how good a hypothesis of one sentence is.

    What it is of a corpus, an attribute `measure` says (see `CorpusMetric`); of a metric without
    one it is the mean of the gains.
    """

    def bind(self, references: References, words: Vocabulary) -> BoundMetric:
        """Prepare the references once, for hypotheses written in the ids of `words`.

        Nobody asks for the gains of sentences that are tuned on elsewhere, as those of other
        shards: such have one reference without words here.
        """


def bind_metric(
    metric: Metric,
    references: References,
    words: Vocabulary,
    numbers: FileNumbers | None = None,
) -> BoundMetric:
    """Return a metric for lists of sentences with these references.

    Where no sentence has any, the lists must have BLEU's statistics, and the metric must be
    computed from them alone: its class says so by ``from_statistics = True``.

    numbers: a metric that knows more of the sentences than their references (its class says so by
        ``by_number = True``) is bound, and asked, as if all sentences of the files were there.

    Raises InputError: the metric needs words, and there are no references.
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


@dataclass(frozen=True)
class CorpusMetric(Checked, ABC):
    """A metric that is, of a corpus, a function of statistics that add up.

    filters: names of `torchtune_smt.metrics.base.FILTERS`, in their order: what is left out of
        account in hypotheses and references. Output stays as it came.
    """

    filters: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.filters:
            one_of(*FILTERS).check("filters", name)

    @property
    @abstractmethod
    def measure(self) -> Measure:
        """What it is of a corpus."""

    def bind(self, references: References, words: Vocabulary) -> BoundCorpusMetric:
        """Prepare the references once; see `Metric.bind`."""
        return BoundCorpusMetric(self, references, words)

    @abstractmethod
    def prepared(self, references: References, words: Vocabulary) -> Any:
        """Return what `count` takes of references, as filters leave them."""

    @abstractmethod
    def count(self, references: Any, kbest: KBest, words: Vocabulary) -> NDArray[Any]:
        """Return the statistics [k, width] of each hypothesis, of words as filters leave them.

        references: of all sentences, as `prepared` gives them.

        Raises InputError: there are none for ``kbest.index``.
        """

    def gains(self, statistics: NDArray[Any]) -> Float64:
        """Return the gains of statistics [k, width]: the score of each hypothesis by itself."""
        return self.measure.scores(statistics)


class BoundCorpusMetric:
    """A `CorpusMetric` that knows the references of one set of sentences."""

    def __init__(self, metric: CorpusMetric, references: References, words: Vocabulary) -> None:
        self.metric, self.measure = metric, metric.measure
        if metric.filters:
            references = [
                row if row is ELSEWHERE else [filtered(one, metric.filters) for one in row]
                for row in references
            ]
        self._references = metric.prepared(references, words)
        self._words = words

    def statistics(self, kbest: KBest) -> NDArray[Any]:
        """Return the statistics [k, width] of each hypothesis of a list."""
        if self.metric.filters:
            names = [self._words.names(kbest.hypothesis(h)) for h in range(len(kbest))]
            lines = [filtered(line, self.metric.filters) for line in names]
            tokens = self._words.intern([word for line in lines for word in line])
            begin = offsets([len(line) for line in lines])
            kbest = replace(kbest, token_begin=begin, tokens=tokens)
        return self.metric.count(self._references, kbest, self._words)

    def gains(self, kbest: KBest) -> Float64:
        """Return the gain (float64 [k]) of each hypothesis; see `CorpusMetric.gains`."""
        own = kbest.statistics if kbest.measure == self.measure else None
        return self.metric.gains(self.statistics(kbest) if own is None else own)


def is_of_bleu(metric: Metric) -> bool:
    """Return whether corpus BLEU is what a metric is of a corpus."""
    return bool(declared(metric, "from_statistics", "bind"))


def measure_of(metric: Metric) -> Measure:
    """Return what a metric is of a corpus: what it says, or the mean of its gains."""
    if is_of_bleu(metric):
        return BLEU
    own = declared(metric, "measure", "bind")
    if isinstance(own, Measure):
        return own
    return mean(str(getattr(metric, "name", type(metric).__name__)))


class Judge(NamedTuple):
    """A metric that knows the references of some sentences, and what it is of a corpus."""

    metric: BoundMetric
    measure: Measure

    def judged(self, lists: KBestLists) -> KBestLists:
        """Return lists with statistics and gains; see `with_gains`."""
        bound, measure = self
        counts: Any = bound.bound if isinstance(bound, _ByNumber) else bound
        if not isinstance(counts, BoundCorpusMetric) or counts.measure != measure:
            lists = with_gains(bound, lists)
            if measure == BLEU:
                return lists
            assert lists.gain is not None
            statistics = np.column_stack([lists.gain, np.ones(lists.n_hypotheses)])
            return replace(lists, statistics=statistics, measure=measure)
        place = bound.placed if isinstance(bound, _ByNumber) else lambda kbest: kbest
        rows = [counts.statistics(place(kbest)) for kbest in lists]
        statistics = np.concatenate(rows or [np.empty((0, measure.width))])
        gain = counts.metric.gains(statistics)
        return replace(lists, statistics=statistics, measure=measure, gain=gain)

    def score(self, lists: KBestLists) -> float:
        """Return the score of hypotheses with statistics, as in `Score.tuned`."""
        assert lists.statistics is not None
        return self.of_sums(lists.statistics.T.copy().sum(axis=1, dtype=np.float64))

    def of_sums(self, sums: Float64) -> float:
        """Return the score of sums of statistics, as in `Score.tuned`."""
        return abs(self.measure.unit) * float(self.measure.scores(sums))


def with_gains(metric: BoundMetric, lists: KBestLists) -> KBestLists:
    """Return lists with the gains of a metric; raise InputError unless they are one for each."""
    gains = [np.empty(0), *(gains_of(metric, kbest) for kbest in lists)]
    return lists.with_gains(np.concatenate(gains))


def gains_of(metric: BoundMetric, kbest: KBest) -> Float64:
    """Return gains by a metric, perhaps of a user's class; raise InputError unless one for each."""
    who = f"the metric {type(metric).__name__}"
    must = f"{who} must return a number for each hypothesis of sentence {kbest.index},"
    found = checked_numbers(np.asarray(metric.gains(kbest)), (len(kbest),), must, kinds="biuf")
    if not np.isfinite(found).all():
        raise InputError(f"{must} that is finite, and returned {found.min()}")
    return found


class _ByNumber:
    """A metric that is asked for the gains of sentences by their numbers in files."""

    def __init__(
        self, metric: Metric, references: References, words: Vocabulary, numbers: FileNumbers
    ) -> None:
        self._numbers = numbers.of
        placed: list[Sequence[list[str]]] = [ELSEWHERE] * numbers.n_sentences
        for index, number in numbers.of.items():
            placed[number] = references[index]
        self.bound = metric.bind(placed, words)

    def placed(self, kbest: KBest) -> KBest:
        return replace(kbest, index=self._numbers[kbest.index])

    def gains(self, kbest: KBest) -> Float64:
        return self.bound.gains(self.placed(kbest))


def references_of(prepared: Sequence[T], index: int) -> T:
    """Return what was prepared for a sentence; raise InputError where there is nothing."""
    if not 0 <= index < len(prepared):
        raise InputError(
            f"no references for sentence {index} (counted from 0): there are {len(prepared)}; "
            "give as many references as sentences"
        )
    return prepared[index]


def check_shape(references: Any, n_sentences: int) -> None:
    """Raise ValueError where references are not lists of lists of words, for each sentence."""
    for index, row in enumerate(references):
        words = [word for one in row for word in one]
        if any(isinstance(one, str) for one in (row, *row)) or not all(
            isinstance(word, str) and split_words(word) == [word] for word in words
        ):
            raise ValueError(
                "references[i] must be a list of references of sentence i, and each a list of "
                'words, as in [[["a", "dog"], ["the", "dog"]], [["yes"]]]; those of sentence '
                f"{index} are {shown(repr(row))}"
            )
    if len(references) != n_sentences:
        raise ValueError(
            f"there are references of {len(references)} sentences, and lists of {n_sentences}"
        )


def check_references(references: References) -> None:
    """Raise InputError where a sentence has no references, or only empty ones."""
    for index, alternatives in enumerate(references):
        if alternatives is not ELSEWHERE and not any(alternatives):
            raise InputError(
                f"sentence {index} (counted from 0) has no reference that is not empty; "
                "every sentence needs one"
            )
