"""What a decoder is to everybody else, and how it says how a translation came about."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np

from torchtune_smt.core.accepts import Checked
from torchtune_smt.core.arrays import Bool, Int64
from torchtune_smt.core.checks import described
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import Origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.sentences import FileNumbers, Sentences

NO_PARTS: Final = "decoder=joint needs a model of each of its parts; take model=joint"


@dataclass(frozen=True)
class Derivation:
    """A rule that was used, and what its gaps were filled with.

    source, target: the sides of the rule; gaps are ``[1]`` and ``[2]``, in source order.
    begin, end: the source words that it covers, gaps among them: from `begin`, counted from 0, to
        before `end`.
    parts: of its gaps, in source order; of the whole sentence all that was glued together.
    """

    source: str
    target: str
    begin: int
    end: int
    parts: tuple[Derivation, ...] = ()


class Decoder(Checked, ABC):
    """Gives k-best lists under weights, of which it changes none.

    A decoder has a vocabulary of features of its own, and whoever learns from its lists looks up
    their names (`torchtune_smt.core.vocabulary`). A new one needs these attributes and `decode`.

    dense_names: dense features; weights for this decoder have them as their first, in this order.
    features: names of the features that it has met, the dense ones first. `decode` adds to it, and
        in an order that does not depend on weights if results are to be the same with them.
    words: words of its hypotheses. References are looked up in it, too.
    stored: whether it decodes nothing, and has lists that stay, whose features are all known.
    phrases: whether a model's rules must be phrase pairs, without gaps, or must not; None: they may
        be either.
    pools: of a decoder that pools the lists of others, its `parts`: what `phrases` is of each, by
        the name that the names of its features have in front (``hiero_Glue``).
    takes_not: why its class is not given what a configuration offers by the name of an argument
        (see `torchtune_smt.cli.wire`), where there is more to say than that it is not taken.
    """

    stored: ClassVar[bool] = False
    phrases: ClassVar[bool | None] = None
    pools: ClassVar[Mapping[str, bool]] = {}
    takes_not: ClassVar[Mapping[str, str]] = {}

    dense_names: list[str]
    features: Vocabulary
    words: Vocabulary
    parts: Mapping[str, Decoder]

    @abstractmethod
    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence, in the order given, with scores, best first.

        Weights are read by ids in `features`. Lists, of `k` at most (by default what the decoder
        was made for), are over `features` and `words`.
        """

    def decode_all(
        self, sources: Sequence[Source], snapshot: Snapshot, size: int
    ) -> Iterator[KBestLists]:
        """Yield the lists of `size` sentences at a time; weights stay as they are meanwhile."""
        for begin in range(0, len(sources), size):
            yield lists_of(self, sources[begin : begin + size], snapshot)

    def meet(self, sources: Sequence[Source]) -> None:
        """Give ids to those features and words that have none, as decoding these sentences does.

        A decoder that does nothing here has ids in the order in which lists come that were decoded
        elsewhere. It makes sums differ in their last bits.
        """
        return None

    def sentences(
        self, name: str, read: Callable[[], Corpus | None], report: Callable[[str], None] = print
    ) -> Sentences | None:
        """Return the sentences of a set that can be decoded, with their references: all.

        Sets are called ``train``, ``dev`` and ``test``; None if there is no such one. `read` reads
        the corpus, and is not asked where that is not needed; `report` is told what is left out.

        Raises InputError: there must be a corpus, or it does not fit.
        """
        corpus = read()
        if corpus is None:
            return None
        return Sentences.of(corpus.source, corpus.references, training=name == "train")

    def file_numbers(self, sources: Sequence[Source]) -> FileNumbers | None:
        """Return what the files of lists call some sentences of one set; None: there are none."""
        return None

    def has_feature(self, name: str) -> bool:
        """Return whether hypotheses may have a feature: any, as long as nobody knows better."""
        return True

    def check_start(self, weights: Snapshot, path: str | None) -> None:
        """Check that the weights that tuning starts from are of use here.

        `path` is their file; None: they were given as values.

        Raises InputError: no dense feature has a weight.
        """
        dense = np.arange(len(self.dense_names))
        if dense.size == 0 or weights.read(self.features, dense).any():
            return
        start = "init.values has" if path is None else "has"
        raise InputError(
            f"{start} no weight for any of this model's dense features "
            f"({', '.join(self.dense_names)}); give init=file init.file=WEIGHTS, of this model",
            path=path,
        )

    def origin(self) -> Origin | None:
        """Return what weights are of that are tuned here without a model; None: nobody can say."""
        return None

    @classmethod
    def longest_source(cls, options: Mapping[str, Any]) -> int | None:
        """Return how many words a source may have under its options; None: any number."""
        return None

    @classmethod
    def unused(
        cls, options: Mapping[str, Any], tune_on: str, *, drops_copies: bool
    ) -> Mapping[str, str]:
        """Return options of ``decoder`` and ``data`` that others cancel, each with the reason.

        `drops_copies`: whether the tuner itself drops hypotheses that it has already.
        """
        return {}

    def feature_ids(self, sources: Sequence[Source]) -> Int64 | None:
        """Return all sparse features that hypotheses of some sentences can have (int64, ascending).

        Nothing is decoded; None if they are not known before. OSCAR counts them for its d.
        """
        return None

    def uncovered(self, source: Source) -> list[str]:
        """Return the words of a sentence that nothing here translates; none, if it cannot say."""
        return []

    def derivation(self, source: Source, snapshot: Snapshot) -> Derivation | None:
        """Return how the first of `decode`'s list came about; None: this decoder cannot say."""
        return None

    def fork(self) -> Self:
        """Return a decoder like this one, whose vocabulary of features grows on its own."""
        other = copy(self)
        other.features = self.features.copy()
        return other

    def sibling(self) -> Self:
        """Return a decoder like this one, for another thread that decodes at the same time.

        It may share the vocabulary of features, whose ids then depend on which thread is first; a
        decoder that does not say how is forked.
        """
        return self.fork()


def lists_of(
    decoder: Decoder, sources: Sequence[Source], snapshot: Snapshot, k: int | None = None
) -> KBestLists:
    """Return what `Decoder.decode` does; a decoder of a user's class may do something else.

    Raises InputError: it does not give a list for each sentence, in their order, in its words.
    """
    length = {} if k is None else {"k": k}
    lists = decoder.decode(sources, snapshot, **length)
    if not isinstance(lists, KBestLists):
        wrong = f"KBestLists, and returned {described(lists)}"
    elif (there := lists.index.tolist()) != (wanted := [source.index for source in sources]):
        wrong = (
            f"a list for each sentence in the order given, with its index: asked for {len(wanted)} "
            f"{wanted[:5]}, it returned {len(there)} {there[:5]}"
        )
    elif not all(0 < size <= (k or size) for size in np.diff(lists.begin).tolist()):
        wrong = "a hypothesis for each sentence, one without words if need be, and no more than k"
    elif lists.features is None or not (lists.words is None or lists.words is decoder.words):
        wrong = "lists with features=self.features and words=self.words, where others look"
    else:
        return lists
    raise InputError(f"the decoder {type(decoder).__name__} must return {wrong}")


def features_in_use(
    path: str, names: Vocabulary, decoder: Decoder, report: Callable[[str], None]
) -> Bool:
    """Return which features of a file a decoder may give (bool); `report` is told of others."""
    named = names.names(range(len(names)))
    there = np.array([decoder.has_feature(name) for name in named], np.bool_)
    if there.any() and not there.all():
        others = np.flatnonzero(~there)
        report(
            f"{path}: {others.size:,} of {len(names):,} weights are left out, as their features, "
            f"such as {named[others[0]]}, are not in use here"
        )
    return there


def checked_decoder(kind: Callable[..., Any]) -> type[Decoder]:
    """Return a class, or raise InputError where it is none of decoders."""
    if not inspect.isclass(kind) or not issubclass(kind, Decoder):
        raise InputError(f"decoder: {kind.__name__} is no torchtune_smt.Decoder; is it meant here?")
    return kind


# Characters of a line, in which the most frequent words are named.
_WIDTH = 68


class Uncovered:
    """Counts the words of sentences that a decoder cannot translate."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._counts: Counter[str] = Counter()
        self._words = 0

    def add(self, sources: Iterable[Source]) -> None:
        """Count those of some sentences."""
        for source in sources:
            self._words += len(source.words)
            self._counts.update(self._decoder.uncovered(source))

    def text(self, unknown: str | None) -> str | None:
        """Return a line for the log, with the fate of such words; None if every word is covered."""
        counts = self._counts
        if not counts:
            return None
        fate = {"keep": "unknown, and copied", "drop": "unknown, and dropped"}
        line = f"{counts.total():,} of {self._words:,} words are "
        line += f"{fate.get(unknown or '', 'in no rule')}: "
        shown: list[str] = []
        for word, _ in counts.most_common():
            if len(line) + len(", ".join([*shown, word])) > _WIDTH:
                break
            shown.append(word)
        return line + ", ".join(shown) + (", ..." if len(shown) < len(counts) else "")
