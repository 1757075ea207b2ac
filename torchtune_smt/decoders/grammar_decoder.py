"""What decoders with a grammar and a language model have in common."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np

from torchtune_smt.core.accepts import above, accepting, check_arguments, integer, least, one_of
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary, enlarged
from torchtune_smt.decoders.base import Decoder, Derivation
from torchtune_smt.decoders.derivation_kernels import (
    FIRST,
    RANK1,
    Columns,
    Derivations,
    best_derivations,
    read_off,
)
from torchtune_smt.decoders.rule_features import RuleFeatures
from torchtune_smt.decoders.search_kernels import CHILD1, RULE, Chart, Rules
from torchtune_smt.decoders.target_kernels import Targets, lay_out, score_alone, score_rules
from torchtune_smt.decoders.translation_features import TranslationFeatures, rule_templates
from torchtune_smt.features.rule_kernels import SentenceFeatures
from torchtune_smt.features.templates import Template, template_of
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.matching_kernels import SentenceGrammar
from torchtune_smt.kbest.lists import KBest, KBestLists, Source
from torchtune_smt.lm.folds import fold_of
from torchtune_smt.models.base import Model


@contextmanager
def deadline(seconds: float | None) -> Iterator[UInt8]:
    """Give a search what says that it is to stop (uint8 [1]): after `seconds`; None: never."""
    stop = np.zeros(1, np.uint8)
    if seconds is None:
        yield stop
        return
    # Kernels do not hold the GIL, so the timer's thread can run. It waits for years at most.
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop.fill, [1])
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()


Counts = tuple[float, float, float, float]

LIMIT: Final = integer(1, NO_LIMIT)
"""What limits of a search may be."""


class SentenceRules(NamedTuple):
    """The rules of a sentence; behind those of the grammar, one that copies each word.

    number: `Source.index`.
    words (int32 [n]): source words of the grammar, -1 where unknown.
    copies (int32 [n]): the same words as target words; -1 where one is dropped.
    model: which of the language models scores its translations.
    lm_words: that model's word of each target word.
    sparse: their sparse features.
    """

    number: int
    words: Int32
    copies: Int32
    grammar: SentenceGrammar
    model: int
    lm_words: Int32
    sparse: SentenceFeatures


# Sentences that are remembered to have come once, at most: some bytes each.
MOST_MET: Final = 1 << 18

Prepared = tuple[SentenceRules, Targets, Any]


class KeptSentences:
    """What was prepared of sentences, as far as there is room (in bytes); for several threads.

    A sentence is kept from its second time on: one that is decoded once takes no room, and those
    that come back soonest are kept first (dev in each iteration of a batch tuner, training
    sentences in each of a grouping one, which has many of those). What is kept stays.
    """

    def __init__(self, room: float) -> None:
        self.nbytes, self.room = 0, room
        self._met: set[int] = set()
        self._kept: dict[tuple[int, int, tuple[str, ...]], Prepared] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, source: Source) -> Prepared | None:
        """Return what is kept of a sentence, if anything is."""
        return self._kept.get(_key(source))

    def offer(self, source: Source, item: Prepared) -> None:
        """Keep what was prepared of a sentence that was not kept, if it is to be kept now."""
        key = _key(source)
        with self._lock:
            # Of two sentences with one hash the second is kept at its first time: no harm.
            met = hash(key)
            if met not in self._met:
                if len(self._met) == MOST_MET:
                    self._met.clear()
                self._met.add(met)
                return
            size = nbytes(item)
            if key not in self._kept and self.nbytes + size <= self.room:
                self._kept[key] = item
                self.nbytes += size


def nbytes(item: Any) -> int:
    """Return how many bytes the arrays in a tuple take, at any depth."""
    if isinstance(item, np.ndarray):
        return item.nbytes
    return sum(map(nbytes, item)) if isinstance(item, tuple) else 0


def _key(source: Source) -> tuple[int, int, tuple[str, ...]]:
    return source.index, source.train_index, tuple(source.words)


class Weighed(NamedTuple):
    """What `GrammarDecoder._prepare` makes of a sentence, and the weights of its features."""

    rules: SentenceRules
    targets: Targets
    options: Any
    sparse_weight: Float64
    dense_weight: Float64


class Found(NamedTuple):
    """What a search has found: a hypergraph, where its phrases stand, and the best derivations."""

    chart: Chart
    span: Int32
    derivations: Derivations

    def ranked(self, item: int, rank: int) -> int:
        """Return an item's derivation of a rank."""
        return int(self.derivations.pool[self.derivations.item[item, FIRST] + rank])

    def child(self, d: int, number: int) -> int:
        """Return the derivation that another one has for its first (0) or second child; or -1."""
        item = int(self.chart.edge[self.edge(d), CHILD1 + number])
        return -1 if item < 0 else self.ranked(item, self.derivations.derivation[d, RANK1 + number])

    def edge(self, d: int) -> int:
        """Return the edge of a derivation."""
        return int(self.derivations.derivation[d, 0])

    def rule(self, d: int) -> int:
        """Return the rule of a derivation, as the chart has it."""
        return int(self.chart.edge[self.edge(d), RULE])


class GrammarDecoder(Decoder):
    """A decoder with a grammar and a language model, and sparse features of rules.

    model: if it has cross-fitted language models, a source of the training bitext is decoded with
        that of its fold (`torchtune_smt.lm.folds.fold_of`).
    longest: words that a rule may cover.
    templates: sparse features. With some of whole translations, or a language model of classes, a
        list is put in the order that these give it; see `TranslationFeatures`.
    orientations: how phrases can be ordered, if the decoder tells that.
    options: k, the length of the lists, more limits, and these; all are attributes:
    max_words: longer sentences are refused: memory grows with the square of their length.
    unique: whether a list holds each string once, with its best derivation.
    unknown ("keep", "drop"): whether words that no rule covers (see `uncovered`) are copied, or
        translated as nothing.
    threads: sentences decoded at a time. The result does not depend on it.
    seconds: a sentence whose search takes longer is an error; by default none is.
    keep_mb: memory, in MB, for what of a sentence does not depend on weights: one that is decoded
        again and again, as in tuning, then takes less time. The result does not depend on it.

    Of the class:
    own: its dense features, which stand behind those of the grammar, and which that has none of:
        what they count for each rule, each word, each word that the language model does not know,
        and each rule that copies a word.

    Raises ValueError: an option is out of its range, or a template needs what is not there.
    Raises InputError: the grammar has a feature with the name of one of the decoder's, or such as a
        template's have.
    """

    accepts = accepting(
        **dict.fromkeys(("k", "max_words", "pop_limit", "threads"), LIMIT),
        unknown=one_of("keep", "drop"),
        seconds=above(0, infinite=True).or_null(),
        keep_mb=least(0, infinite=True),
    )

    own: ClassVar[Mapping[str, Counts]]

    k: int
    max_words: int
    pop_limit: int
    table_limit: int = NO_LIMIT
    unique: bool
    unknown: str
    threads: int
    seconds: float | None
    keep_mb: float
    _columns: Columns

    def __init__(
        self,
        model: Model,
        longest: int,
        templates: Sequence[Template],
        options: Mapping[str, Any],
        orientations: Sequence[str] = (),
    ) -> None:
        check_arguments(type(self), options)
        for name, value in options.items():
            setattr(self, name, value)
        self.grammar = model.grammar
        self.models = [model.language_model, *model.folds]
        self._classes = model.classes
        self.templates = list(templates)
        self._whole = TranslationFeatures(templates, model.classes, model.class_model)
        self._template_names = frozenset(template.name for template in templates)
        self.words = self.grammar.target_words
        own = [*self.own, *self._whole.dense_names]
        _check_names(self.grammar, own, self._template_names)
        self.dense_names = [*self.grammar.dense_names, *own]
        self.features = Vocabulary(self.dense_names)
        self._longest = longest
        self._orientations = list(orientations)
        self._rule_features = self._new_rule_features(self.features)
        self._lm_words: list[Int32] = [np.empty(0, np.int32) for _ in self.models]
        # Scores of phrases by themselves in each model, found when they are first met: pages of
        # zeros cost nothing.
        known = len(self.grammar) if self.phrases else 0
        self._alone = [(np.zeros((known, 3), np.int32), np.zeros(known)) for _ in self.models]
        self._alone_lock = Lock()
        # The sentences decoded last, with the symbols of all rules that match each.
        self._last: list[tuple[Source, Int32]] = []
        self._map: Any = map if self.threads == 1 else ThreadPoolExecutor(self.threads).map
        self._kept = KeptSentences(1e6 * self.keep_mb)

    def _options(self, rules: SentenceRules, targets: Targets) -> Any:
        """Return what a search needs besides, and does not depend on weights; runs in threads."""
        return None

    @abstractmethod
    def _graph(self, sentence: Weighed, scored: Rules, stop: UInt8) -> tuple[Chart, Int32]:
        """Return the hypergraph of a sentence, and where its phrases stand; runs in threads.

        It has no goal if `stop` (see `deadline`) was set in the middle of the search.
        """

    @abstractmethod
    def _parts(
        self, found: Found, d: int, rules: SentenceRules, source: Source
    ) -> Iterable[Derivation]:
        """Return the parts of a translation, as they are glued together; `d`: its derivation."""

    def _prepare(self, rules: SentenceRules) -> Prepared:
        """Return what of a sentence does not depend on weights; runs in threads."""
        behind = int(self.phrases or 0)
        targets = lay_out(
            self.grammar.target_begin,
            self.grammar.target_symbols,
            rules.grammar.rule,
            rules.grammar.dense,
            rules.copies,
            rules.lm_words,
            np.array(list(self.own.values()), np.float64),
            behind,
        )
        # Who finds a phrase that somebody has begun to write down would take it for whole.
        with self._alone_lock if self.phrases else nullcontext():
            tables, alone = self.models[rules.model].tables, self._alone[rules.model]
            score_alone(*tables, rules.grammar.rule, targets, behind, *alone)
        options, grammar = self._options(rules, targets), rules.grammar
        grammar = grammar._replace(dense=np.empty((0, 0)))
        return rules._replace(grammar=grammar, lm_words=np.empty(0, np.int32)), targets, options

    def _search(self, sentence: Weighed, k: int, stop: UInt8) -> Found:
        """Decode one sentence; runs in threads. Raises TimeoutError: `stop` was set meanwhile."""
        columns, rules = self._columns, sentence.rules
        lm_weight = float(sentence.dense_weight[columns.language_model])
        lm_weight *= columns.language_model_unit
        # What a rule scores wherever it stands: no orientation.
        own_weight = sentence.dense_weight.copy()
        own_weight[columns.first_orientation : columns.own] = 0.0
        scored = score_rules(
            rules.grammar.rule_begin,
            sentence.targets,
            own_weight,
            rules.sparse,
            sentence.sparse_weight,
            lm_weight,
            self.table_limit,
        )
        chart, span = self._graph(sentence, scored, stop)
        if chart.goal < 0:
            raise TimeoutError
        return Found(chart, span, best_derivations(chart, sentence.targets, k, self.unique))

    @classmethod
    def longest_source(cls, options: Mapping[str, Any]) -> int | None:
        """Return the option ``max_words``, if it is given."""
        return options.get("max_words")

    def has_feature(self, name: str) -> bool:
        """Return whether a feature is dense, or of one of the templates."""
        return template_of(name) in self._template_names or name in self.dense_names

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence (see `Decoder.decode`), which is never empty.

        Raises ValueError: a sentence is too long; InputError: the search for the translations of a
        sentence took more than `seconds`, or needs more memory than there is.
        """
        size = self.k if k is None else k
        if self._whole:
            # What is best may be anywhere in the list that the search finds.
            size = max(size, self.k)
        for source in sources:
            if len(source.words) > self.max_words:
                raise ValueError(
                    f"sentence {source.index} has {len(source.words)} words, and at most "
                    f"{self.max_words} are decoded; split it, or make the decoder with max_words"
                )
        sentences = self._sentences(sources)
        symbols = [rules.grammar.child_symbol for rules in sentences]
        self._last = list(zip(sources, symbols, strict=True))
        dense, sparse = self._weights_of(sentences, snapshot)

        def translate(s: int) -> KBest:
            source, rules = sources[s], sentences[s]
            try:
                with deadline(self.seconds) as stop:
                    one = Weighed(*self._prepared(source, rules), sparse[s], dense)
                    return self._list(self._search(one, size, stop), one, source)
            except (TimeoutError, MemoryError) as error:
                cure = f"lower decoder.pop_limit ({self.pop_limit:,}), or split the sentence"
                if isinstance(error, TimeoutError):
                    what = f"took more than {self.seconds:g} s (decoder.seconds); give more, {cure}"
                else:
                    what = f"needs more memory than there is; {cure}"
                raise InputError(
                    f"sentence {source.index} (counted from 0), of {len(source.words)} words, "
                    f"{' '.join(source.words[:6])!r}: its search {what}"
                ) from None

        # The longest first: at the end no thread waits long for another one.
        order = sorted(range(len(sources)), key=lambda s: -len(sources[s].words))
        found = dict(zip(order, self._map(translate, order), strict=True))
        lists = KBestLists.of([found[s] for s in range(len(sources))])
        return self._whole.ranked(lists, snapshot, k) if self._whole else lists

    def _list(self, found: Found, sentence: Weighed, source: Source) -> KBest:
        """Return the derivations that a search has found as a list; runs in threads."""
        rules, targets = sentence.rules, sentence.targets
        token_begin, tokens, row_begin, feature, value, score = read_off(
            *found, len(source.words), targets, rules.sparse, self._columns
        )
        return KBest(
            index=rules.number,
            rows=Rows(row_begin, feature, value),
            features=self.features,
            score=score,
            token_begin=token_begin,
            tokens=tokens,
            words=self.words,
        )

    def feature_ids(self, sources: Sequence[Source]) -> Int64 | None:
        """Return the sparse features of all rules that match some sentences.

        None: whole translations have some, too, which nobody knows before.
        """
        if self._whole.templates:
            return None
        met = np.zeros(0, np.bool_)
        for source in sources:
            ids = self._sparse_of(source, self._grammar_of(source))[0].id
            if met.size < len(self.features):
                met = enlarged(met, len(self.features))
            met[ids] = True
        return np.flatnonzero(met)

    def uncovered(self, source: Source) -> list[str]:
        """Return the words of a sentence that stand in no rule that can match it."""
        # Its rules are not looked for again if it has just been decoded.
        symbols = next((symbols for decoded, symbols in self._last if decoded is source), None)
        if symbols is None:
            symbols = self._grammar_of(source).child_symbol
        uncovered = self._uncovered(source, symbols)
        return [source.words[i] for i in np.flatnonzero(uncovered).tolist()]

    def _uncovered(self, source: Source, symbols: Int32) -> Bool:
        """Return which words of a sentence are not among the symbols of rules that match it."""
        # Every edge of its grammar's trie leads to a rule; -1 is the gap there.
        words = self.grammar.source_words.lookup(source.words)
        return (words < 0) | ~np.isin(words, symbols)

    def _weights_of(
        self, sentences: Sequence[SentenceRules], snapshot: Snapshot
    ) -> tuple[Float64, list[Float64]]:
        """Return the weights of dense features, and of each sentence's sparse ones."""
        n_dense = len(self.dense_names)
        ids = np.concatenate([np.arange(n_dense), *[s.sparse.id for s in sentences]])
        bounds = np.cumsum([n_dense, *[s.sparse.id.size for s in sentences]])[:-1]
        dense, *sparse = np.split(snapshot.read(self.features, ids), bounds)
        return dense, sparse

    def derivation(self, source: Source, snapshot: Snapshot) -> Derivation:
        """Return the rules of the best translation."""
        sentences = self._sentences([source])
        dense, sparse = self._weights_of(sentences, snapshot)
        one = Weighed(*self._prepared(source, sentences[0]), sparse[0], dense)
        with deadline(None) as never:
            found = self._search(one, self.k if self._whole else 1, never)
        best = 0
        if self._whole:
            lists = KBestLists.of([self._list(found, one, source)])
            lists = replace(lists, entry=np.arange(lists.n_hypotheses))
            best = int(self._whole.ranked(lists, snapshot, 1).entries()[0])
        parts = self._parts(found, found.ranked(found.chart.goal, best), one.rules, source)
        return Derivation("", "", 0, len(source.words), tuple(parts))

    def _sides(self, rule: int, rules: SentenceRules, source: Source) -> tuple[str, str]:
        """Return the sides of a sentence's rule as text."""
        copied = rule - rules.grammar.rule.size
        if copied >= 0:
            word = source.words[copied]
            return word, word if rules.copies[copied] >= 0 else ""
        left, right = self.grammar.rule_text(int(rules.grammar.rule[rule]))
        return " ".join(left), " ".join(right)

    def fork(self) -> Self:
        """Return a decoder like this one, whose vocabulary of features grows on its own."""
        other = super().fork()
        other._rule_features = self._new_rule_features(other.features)
        # Ids of features are other ones there.
        other._kept = KeptSentences(self._kept.room)
        return other

    def sibling(self) -> Self:
        """Return a decoder for another thread, with the same features: names are made once."""
        other = copy(self)
        other._rule_features = self._rule_features.sibling()
        return other

    def _new_rule_features(self, features: Vocabulary) -> RuleFeatures:
        templates = rule_templates(self.templates)
        return RuleFeatures(self.grammar, templates, features, self._orientations, self._classes)

    def _grammar_of(self, source: Source) -> SentenceGrammar:
        """Return the rules that can match a sentence."""
        words = self.grammar.source_words.lookup(source.words)
        return self.grammar.sentence_grammar(words, self._longest, source.train_index)

    def meet(self, sources: Sequence[Source]) -> None:
        """Give ids to those features and words that have none, as decoding these sentences does."""
        self._found(sources)

    def _found(self, sources: Sequence[Source]) -> list[SentenceRules]:
        """Return the rules of sentences of which nothing is kept."""
        # New words and names get their ids here, one sentence after the other, so that these do
        # not depend on threads; what runs in threads touches nothing that they share.
        copies = [self.words.intern(source.words) for source in sources]
        grammars = list(self._map(self._grammar_of, sources))
        models = [self._model_of(source) for source in sources]
        lm_words = {m: self._extended_lm_words(m) for m in set(models)}
        found = []
        for source, copied, grammar, model in zip(sources, copies, grammars, models, strict=True):
            sparse, dropped = self._sparse_of(source, grammar)
            if dropped is not None:
                copied = np.where(dropped, np.int32(-1), copied)
            words = self.grammar.source_words.lookup(source.words)
            found.append(
                SentenceRules(source.index, words, copied, grammar, model, lm_words[model], sparse)
            )
        return found

    def _sparse_of(
        self, source: Source, grammar: SentenceGrammar
    ) -> tuple[SentenceFeatures, Bool | None]:
        """Return the sparse features of a sentence's rules, and its words that are dropped."""
        drops = self.unknown == "drop"
        dropped = self._uncovered(source, grammar.child_symbol) if drops else None
        given = grammar.rule, source.words, dropped, source.train_index
        return self._rule_features.of_sentence(*given), dropped

    def _sentences(self, sources: Sequence[Source]) -> list[SentenceRules]:
        """Return the rules of each sentence."""
        kept = [self._kept.get(source) for source in sources]
        missing = [source for source, one in zip(sources, kept, strict=True) if one is None]
        new = iter(self._found(missing))
        return [next(new) if one is None else one[0] for one in kept]

    def _prepared(self, source: Source, rules: SentenceRules) -> Prepared:
        """Return what `_prepare` does, or what is kept of that."""
        kept = self._kept.get(source)
        if kept is None:
            kept = self._prepare(rules)
            self._kept.offer(source, kept)
        return kept

    def _model_of(self, source: Source) -> int:
        """Return which language model scores the translations of a sentence."""
        if source.train_index < 0 or len(self.models) == 1:
            return 0
        first = self.grammar.left_out_first(source.train_index)
        return 1 + fold_of(first, len(self.models) - 1)

    def _extended_lm_words(self, m: int) -> Int32:
        """Return model m's word id of every target word, looking up those that are new."""
        known = self._lm_words[m]
        if known.size < len(self.words):
            new = self.words.names(range(known.size, len(self.words)))
            known = np.concatenate([known, self.models[m].word_ids(new)])
            self._lm_words[m] = known
        return known


def _check_names(
    grammar: Grammar, own_names: Collection[str], template_names: Collection[str]
) -> None:
    """Refuse a grammar that has a feature of the decoder's: one name has one weight."""
    for name in grammar.dense_names:
        template, colon, _ = name.partition(":")
        if name in own_names or (colon and template in template_names):
            path, line = grammar.feature_places.get(name, (None, None))
            raise InputError(
                f"the grammar has a feature {name}, and the decoder counts one of this name "
                f"itself ({', '.join([*own_names, *sorted(template_names)])}); leave it out of the "
                "grammar, or give it another name",
                path=path,
                line=line,
            )
