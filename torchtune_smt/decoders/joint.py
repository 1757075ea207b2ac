"""Two decoders in one list: what either finds, scored by both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Integers
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import gather, joined_offsets, offsets
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.base import NO_PARTS, Decoder, lists_of
from torchtune_smt.features.templates import OrientedTemplate, Template
from torchtune_smt.kbest.columns import with_dense
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.rerank import reranked
from torchtune_smt.models.base import Model

ORDER: Final = 4
"""Of the longest n-grams that hypotheses are compared by."""


class JointDecoder(Decoder):
    """The k-best lists of a hierarchical and of a phrase-based decoder, pooled.

    A string that both lists have is one hypothesis. It has the features of either, which are called
    after whose they are, as ``hiero_LanguageModel`` and ``phrase_LM0_0``: each part decodes with
    its own. In the place of those of a part whose list lacks the string it has those of the last
    hypothesis there, since the part finds it no better than that, and ``hiero_missing`` or
    ``phrase_missing``. So parts are compared with themselves alone, and the order of a list does
    not depend on where their scores begin.

    ``Agreement_1`` to ``Agreement_4`` add up over the n-grams of a hypothesis how much of the
    lists has each: hypothesis r of a list, from 1, counts 1/r, and each list a half (after
    Tromble et al. 2008, "Lattice minimum Bayes-risk decoding for statistical machine
    translation", with weights that are tuned).

    model: of ``model=joint``.
    hiero, phrase: return the parts, given their model, templates and threads. Where a partial
        function has ``templates`` already, these are the names of those that the part takes.
    templates: sparse features; a part that does not order phrases takes none that look at that.
    """

    pools: ClassVar[Mapping[str, bool]] = {"hiero": False, "phrase": True}

    def __init__(
        self,
        model: Model,
        hiero: Callable[..., Decoder],
        phrase: Callable[..., Decoder],
        *,
        templates: Sequence[Template] = (),
        threads: int = 1,
    ) -> None:
        models: Mapping[str, Model] = getattr(model, "models", {})
        if not models:
            raise InputError(NO_PARTS)
        parts: dict[str, Decoder] = {}
        unoriented = [one for one in templates if not isinstance(one, OrientedTemplate)]
        for name, part, own in (("hiero", hiero, unoriented), ("phrase", phrase, templates)):
            with named_errors(f"decoder.{name}"):
                takes = getattr(part, "keywords", {}).get("templates")
                known = {one.name: one for one in own}
                if wrong := [one for one in takes or () if one not in known]:
                    there = ", ".join(known) or "there are none"
                    raise ValueError(f"templates has {wrong[0]}, and is to choose of {there}")
                chosen = [known[one] for one in (known if takes is None else takes)]
                parts[name] = part(model=models[name], templates=chosen, threads=threads)
        self.parts = parts
        theirs = [f"{name}_{feature}" for name, p in parts.items() for feature in p.dense_names]
        self.dense_names = [*theirs, *(f"{name}_missing" for name in parts)]
        self.dense_names += [f"Agreement_{n}" for n in range(1, ORDER + 1)]
        self._own = self.dense_names[len(theirs) :]
        self.features, self.words = Vocabulary(self.dense_names), Vocabulary()
        self._ids = [_Ids(p.features, self.features, f"{name}_") for name, p in parts.items()]
        self._word_ids = [_Ids(part.words, self.words) for part in parts.values()]

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best lists, by default all that the parts find; `k` is of the pooled one."""
        found = [
            lists_of(part, sources, _OfPart(snapshot, ids))
            for part, ids in zip(self.parts.values(), self._ids, strict=True)
        ]
        texts = [lists.strings()[0] for lists in found]
        tokens = [ids(lists.strings()[1]) for ids, lists in zip(self._word_ids, found, strict=True)]
        begins = np.stack([lists.begin for lists in found])
        begin, place = _pooled(begins, texts, tokens)
        sentence, lacks = np.repeat(np.arange(len(sources)), np.diff(begin)), place < 0
        rows = Rows(np.zeros(len(lacks) + 1, np.int64), np.empty(0, np.int32), np.empty(0))
        for p, lists in enumerate(found):
            last = begins[p, 1:][sentence] - 1
            theirs = lists.rows.renamed(self._ids[p].all())
            theirs = theirs.chosen(np.where(lacks[:, p], last, place[:, p]))
            rows = rows.with_entries(theirs.owner, theirs.feature, theirs.value)
        # The words of a hypothesis are those that the first list with it has.
        where = np.argmin(lacks, axis=1)
        where = place[np.arange(where.size), where] + offsets(begins[:, -1])[where]
        token_begin, words = gather(joined_offsets(texts), np.concatenate(tokens), where)
        rank = np.where(lacks, np.inf, place - begins[:, :-1].T[sentence] + 1)
        agreement = _agreement(token_begin, words, sentence, rank)
        pool = KBestLists(
            index=np.array([source.index for source in sources], np.int64),
            begin=begin,
            rows=rows,
            features=self.features,
            token_begin=token_begin,
            tokens=words,
            words=self.words,
        )
        own = with_dense(pool, self._own, np.column_stack([lacks, agreement]))
        return reranked(own, snapshot, k)

    def meet(self, sources: Sequence[Source]) -> None:
        """Give ids to those features and words that have none, as decoding these sentences does."""
        for part, features, words in zip(
            self.parts.values(), self._ids, self._word_ids, strict=True
        ):
            part.meet(sources)
            features.all()
            words.all()

    def has_feature(self, name: str) -> bool:
        """Return whether a feature is of a part, or one that all have."""
        part, _, own = name.partition("_")
        theirs = part in self.parts and self.parts[part].has_feature(own)
        return theirs or name in self.dense_names

    @classmethod
    def longest_source(cls, options: Mapping[str, Any]) -> int | None:
        """Return the fewest of the options ``max_words`` of the parts."""
        given = [(options.get(part) or {}).get("max_words") for part in cls.pools]
        return min((most for most in given if most is not None), default=None)

    def feature_ids(self, sources: Sequence[Source]) -> Int64 | None:
        """Return all sparse features that hypotheses of some sentences can have."""
        found = []
        for part, ids in zip(self.parts.values(), self._ids, strict=True):
            own = part.feature_ids(sources)
            if own is None:
                return None
            found.append(ids(own))
        return np.sort(np.concatenate(found)).astype(np.int64)

    def uncovered(self, source: Source) -> list[str]:
        """Return the words of a sentence that no part translates."""
        first, *others = (part.uncovered(source) for part in self.parts.values())
        return [word for word in first if all(word in other for other in others)]

    def fork(self) -> Self:
        """Return a decoder like this one, whose vocabulary of features grows on its own."""
        other = super().fork()
        other.parts = {name: part.fork() for name, part in self.parts.items()}
        other._ids = [
            _Ids(part.features, other.features, f"{name}_") for name, part in other.parts.items()
        ]
        return other


class _Ids:
    """The ids in a vocabulary of the names of another, behind a prefix, which are added to it."""

    def __init__(self, source: Vocabulary, target: Vocabulary, prefix: str = "") -> None:
        self.target = target
        self._source, self._prefix = source, prefix
        self._ids: Int32 = np.empty(0, np.int32)
        self._count = 0
        self._lock = threading.Lock()
        self.all()

    def __call__(self, ids: Integers) -> Int32:
        """Return the ids in the target of some in the source."""
        return self.all()[ids]

    def all(self) -> Int32:
        """Return the ids of all names of the source, in the order of their own."""
        with self._lock:
            first, last = self._count, len(self._source)
            if last > first:
                names = [self._prefix + name for name in self._source.names(range(first, last))]
                if last > self._ids.size:
                    # A quarter more each time keeps the cost of growing constant per name.
                    self._ids = np.resize(self._ids, last * 5 // 4)
                self._ids[first:last] = self.target.intern(names)
                self._count = last
            return self._ids[:last]


class _OfPart:
    """Weights as a part of a decoder sees them, by its own names; see `Snapshot`."""

    def __init__(self, snapshot: Snapshot, ids: _Ids) -> None:
        self.version = snapshot.version
        self._snapshot, self._ids = snapshot, ids

    def read(self, features: Vocabulary | None, ids: Integers) -> Float64:
        """Return the weights of some features, which are the part's."""
        return self._snapshot.read(self._ids.target, self._ids(ids))


def _pooled(
    begins: Int64, token_begins: Sequence[Int64], tokens: Sequence[Int32]
) -> tuple[Int64, Int64]:
    """Return the distinct strings of each sentence, and which is the first in each list, or -1."""
    places: list[list[int]] = []
    sizes = []
    for s in range(begins.shape[1] - 1):
        known: dict[bytes, list[int]] = {}
        for p, (begin, bounds, words) in enumerate(zip(begins, token_begins, tokens, strict=True)):
            for h in range(*begin[s : s + 2].tolist()):
                text = words[bounds[h] : bounds[h + 1]].tobytes()
                place = known.setdefault(text, [-1] * len(begins))
                if place[p] < 0:
                    place[p] = h
        places += known.values()
        sizes.append(len(known))
    return offsets(sizes), np.array(places, np.int64).reshape(-1, len(begins))


def _agreement(token_begin: Int64, tokens: Int32, sentence: Int64, rank: Float64) -> Float64:
    """Return the features of agreement, float64 [n, ORDER]; ranks, from 1, are infinite if none."""
    n, length = sentence.size, np.diff(token_begin)
    weight = 1 / rank
    total = np.zeros((int(sentence.max(initial=-1)) + 1, rank.shape[1]))
    np.add.at(total, sentence, weight)
    share = (weight / total[sentence]).sum(axis=1) / rank.shape[1]
    hypothesis = np.repeat(np.arange(n), length)
    # How many words of a hypothesis there are from one on.
    left = token_begin[1:][hypothesis] - np.arange(tokens.size)
    word = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    gram = sentence[hypothesis]
    found = np.empty((n, ORDER))
    for order in range(ORDER):
        at = np.flatnonzero(left > order)
        # Those of one sentence that are alike so far, and have the same next word.
        gram[at] = np.unique(
            gram[at] * (word.max(initial=0) + 1) + word[at + order], return_inverse=True
        )[1]
        pairs = np.unique(gram[at] * n + hypothesis[at])
        mass = np.bincount(pairs // n, share[pairs % n], minlength=1)
        found[:, order] = np.bincount(hypothesis[at], mass[gram[at]], minlength=n)[:n]
    return found
