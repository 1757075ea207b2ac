"""Sentence-level BLEU, and its variants: a class each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.accepts import Checked, above, accepting, one_of
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.metrics import bleu_kernels as kernels
from torchtune_smt.metrics.base import References, check_references, references_of

Counts = NDArray[np.int64]
"""Rows of BLEU's statistics; see `BleuReferences.statistics`."""


class BleuReferences:
    """References prepared for counting n-gram matches.

    references: ``references[i]``: those of sentence i, tokenised; their number may differ. None at
        all for lists that have their statistics.
    words: gives the ids in which hypotheses are written. Words of the references are added to it: a
        hypothesis may bring them later.

    Raises InputError: a sentence has no references, or only empty ones.
    """

    def __init__(self, references: References, words: Vocabulary) -> None:
        check_references(references)
        flat = [reference for alternatives in references for reference in alternatives]
        lengths = np.array([len(reference) for reference in flat], np.int64)
        group = offsets([len(alternatives) for alternatives in references])
        begin = offsets(lengths)
        tokens = words.intern([word for reference in flat for word in reference])

        sizes = begin[group[1:]] - begin[group[:-1]]
        rooms = np.array([1 << (2 * int(size)).bit_length() for size in sizes], np.int64)
        self._root_begin = offsets(rooms)
        self._roots = np.full(self._root_begin[-1], -1, np.int32)
        nodes = np.empty((kernels.ORDER * tokens.size, 4), np.int32)
        self._node_begin = kernels.build_tries(
            tokens, begin, group, self._root_begin, self._roots, nodes
        )
        self._nodes = nodes[: self._node_begin[-1]].copy()
        self._length_begin = group
        # Ascending lengths make the shorter of two equally close ones come first.
        order = np.lexsort((lengths, np.repeat(np.arange(group.size - 1), np.diff(group))))
        self._lengths = lengths[order]

    def __len__(self) -> int:
        return self._length_begin.size - 1

    def shortest(self) -> NDArray[np.int64]:
        """Return the length of each sentence's shortest reference."""
        return self._lengths[self._length_begin[:-1]]

    def with_statistics(self, lists: KBestLists) -> KBestLists:
        """Return lists with the statistics of their hypotheses; see `statistics`."""
        if lists.statistics is not None and lists.measure == BLEU:
            return lists
        rows = [np.empty((0, kernels.STATISTICS)), *map(self.statistics, lists)]
        statistics = np.concatenate(rows).astype(np.int32)
        return replace(lists, statistics=statistics, measure=BLEU)

    def statistics(self, kbest: KBest) -> Counts:
        """Return sacrebleu's sufficient statistics for each hypothesis, the list's own if any.

        Returns int64 [k, 10]: clipped matches m_1..m_4; n-grams in the hypothesis l_1..l_4;
            hypothesis length c; length r of the closest reference (of two equally close ones the
            shorter).

        Raises InputError: there are no references for ``kbest.index``.
        """
        if kbest.statistics is not None and kbest.measure == BLEU:
            return kbest.statistics.astype(np.int64)
        return kernels.match_statistics(
            references_of(range(len(self)), kbest.index),
            self._root_begin,
            self._roots,
            self._node_begin,
            self._nodes,
            self._length_begin,
            self._lengths,
            *kbest.strings(),
        )


class SentenceBleu(Checked, ABC):
    """A gain that is computed from BLEU's statistics: one method makes a new variant."""

    from_statistics: ClassVar[bool] = True

    @abstractmethod
    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k]) of each row of `BleuReferences.statistics`."""

    def bind(self, references: References, words: Vocabulary) -> BoundBleu:
        """Prepare the references once; see `BleuReferences`."""
        return BoundBleu(self, BleuReferences(references, words))


class BoundBleu:
    """A `SentenceBleu` for one set of references; a sentence's gains may get a factor (int64)."""

    def __init__(
        self,
        metric: SentenceBleu,
        references: BleuReferences,
        factors: NDArray[np.int64] | None = None,
    ) -> None:
        self._metric, self._references, self._factors = metric, references, factors

    def gains(self, kbest: KBest) -> Float64:
        """Return the gain (float64 [k]) of each hypothesis."""
        gains = self._metric.score(self._references.statistics(kbest))
        return gains if self._factors is None else gains * self._factors[kbest.index]


@dataclass(frozen=True)
class BleuPlusOne(SentenceBleu):
    """BLEU+1: sentence-level BLEU-4 with one added to matches and counts of orders 2 to 4.

    p_1 = m_1 / l_1, p_n = (m_n + 1) / (l_n + 1) for n = 2..4, brevity penalty
    min(1, exp(1 - r/c)); 0 where m_1 = 0. Gains are in 0..1 and equal sacrebleu's add-k
    smoothing with k = 1. Lin and Och (2004); used by Green et al. (2013).

    short_references: count only the orders up to r where r < 4, as dtrain's ``stupid_bleu`` does.
    """

    short_references: bool = False

    def score(self, statistics: Counts) -> Float64:
        """Return BLEU+1 (float64 [k], 0..1) of each row of statistics."""
        return kernels.smoothed_bleu(statistics, 0.0, 1.0, 0.0, self.short_references, False)


@dataclass(frozen=True)
class NakovBleu(SentenceBleu):
    """BLEU+1 whose brevity penalty is smoothed like its precisions: min(1, exp(1 - (r + 1)/c)).

    BLEU+1 raises the precisions of short hypotheses and not their penalty, so that tuning makes
    translations too short. Gains are in 0..1; a hypothesis as long as its reference has a
    penalty. Nakov, Guzmán and Vogel (2012), "Optimizing for sentence-level BLEU+1 yields short
    translations"; as it stands dtrain's ``fixed_stupid_bleu``, but for short references.

    smooth_unigrams: add one to matches and counts of words too, as Phrasal's
        ``bleu-nakov-unscaled`` does.
    grounding: subtract from the precision (the geometric mean) that of as long a hypothesis without
        any match, Π (1 / (l_n + 1))^(1/4), so that no match gives 0 again. Only with
        `smooth_unigrams`: otherwise it is 0 already.
    short_references: count only the orders up to r where r < 4, as dtrain does.

    Raises ValueError: `grounding` without `smooth_unigrams`.
    """

    smooth_unigrams: bool = False
    grounding: bool = False
    short_references: bool = False

    def __post_init__(self) -> None:
        if self.grounding and not self.smooth_unigrams:
            raise ValueError(
                "grounding does nothing without smooth_unigrams, since a hypothesis that matches "
                "no word has gain 0 already: set smooth_unigrams=true too"
            )

    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k], 0..1) of each row of statistics."""
        first = 1.0 if self.smooth_unigrams else 0.0
        return kernels.smoothed_bleu(
            statistics, first, 1.0, 1.0, self.short_references, self.grounding
        )


@dataclass(frozen=True)
class MosesBleu(SentenceBleu):
    """BLEU with s added to matches and counts of all orders, single words included.

    Moses's ``smoothedSentenceBleu``. Gains are in 0..1, and not 0 without a match.

    smoothing: s, more than 0.
    smooth_brevity: add s to the reference's length in the brevity penalty.
    """

    accepts = accepting(smoothing=above(0))

    smoothing: float = 1.0
    smooth_brevity: bool = False

    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k], 0..1) of each row of statistics."""
        s = float(self.smoothing)
        added = s if self.smooth_brevity else 0.0
        return kernels.smoothed_bleu(statistics, s, s, added, False, False)


@dataclass(frozen=True)
class SacreBleu(SentenceBleu):
    """sacrebleu's ``sentence_bleu`` (divided by 100), with ``tokenize="none"``.

    Hypotheses and references are compared as they were tokenised. Gains are in 0..1.

    smooth_method: "exp": the k-th order without a match counts 1 / (2^k l_n); "floor": such orders
        count `smooth_value` / l_n; "add-k": `smooth_value` is added to matches and counts of orders
        2 to 4; "none". Chen and Cherry (2014) compare them.
    smooth_value: more than 0; 0.1 for floor and 1 for add-k unless given. The other methods take
        none.
    effective_order: leave orders out that are longer than the hypothesis, as sacrebleu does for
        sentences. Otherwise such hypotheses have gain 0 (with add-k: precision 1).
    """

    smooth_method: str = "exp"
    smooth_value: float | None = None
    effective_order: bool = True

    # As the kernel numbers them.
    METHODS: ClassVar[dict[str, int]] = {"none": 0, "floor": 1, "add-k": 2, "exp": 3}
    DEFAULTS: ClassVar[dict[str, float]] = {"floor": 0.1, "add-k": 1.0}
    accepts = accepting(smooth_method=one_of(*METHODS), smooth_value=above(0).or_null())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smooth_value is not None and self.smooth_method not in self.DEFAULTS:
            raise ValueError(
                f"smooth_method={self.smooth_method} takes no smooth_value: leave it out, or "
                f"choose {' or '.join(self.DEFAULTS)}"
            )

    def score(self, statistics: Counts) -> Float64:
        """Return sacrebleu's score / 100 (float64 [k]) of each row of statistics."""
        value = self.smooth_value or self.DEFAULTS.get(self.smooth_method, 0.0)
        return kernels.sacrebleu_bleu(
            statistics, self.METHODS[self.smooth_method], float(value), self.effective_order
        )


@dataclass(frozen=True)
class LiangBleu(SentenceBleu):
    """BP · Σ_i BLEU_i / 2^(4 - i + 1), where BLEU_i is the geometric mean of p_1..p_i.

    Nothing is added to the counts. Gains are in 0..15/16. Liang et al. (2006), "An end-to-end
    discriminative approach to machine translation"; dtrain's ``smooth_bleu``.
    """

    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k], 0..15/16) of each row of statistics."""
        return kernels.liang_bleu(statistics)


@dataclass(frozen=True)
class PhrasalBleu:
    """BLEU+1 times the length of the sentence's shortest reference: Phrasal's ``bleu-smooth``.

    A sentence weighs what its length makes it weigh in corpus BLEU. Gains are in 0..length, so
    that the threshold of a pair sampler is in these units.

    nakov: Phrasal's ``bleu-nakov`` instead: `NakovBleu` with `smooth_unigrams`, times the length.
    """

    nakov: bool = False

    def bind(self, references: References, words: Vocabulary) -> BoundBleu:
        """Prepare the references once; see `BleuReferences`."""
        metric = NakovBleu(smooth_unigrams=True) if self.nakov else BleuPlusOne()
        prepared = BleuReferences(references, words)
        return BoundBleu(metric, prepared, prepared.shortest())
