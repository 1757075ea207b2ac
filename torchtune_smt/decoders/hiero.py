"""The hierarchical phrase-based decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.decoders.hiero_chart_kernels import fill_chart
from torchtune_smt.decoders.hiero_kbest_kernels import best_derivations, read_off
from torchtune_smt.decoders.hiero_rule_kernels import local_rules, score_rules
from torchtune_smt.decoders.rule_features import RuleFeatures
from torchtune_smt.features.template import RuleTemplate, template_of
from torchtune_smt.grammar.base import SentenceGrammar
from torchtune_smt.kbest.lists import KBest, KBestLists, Source
from torchtune_smt.lm.folds import fold_of
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model

LANGUAGE_MODEL = "LanguageModel"
UNKNOWN_WORDS = "LanguageModel_OOV"
WORD_PENALTY = "WordPenalty"
PASS_THROUGH = "PassThrough"
GLUE = "Glue"

WORD_VALUE = -math.log10(math.e)


@dataclass(frozen=True)
class _Sentence:
    """All of a sentence's rules, the pass-through rules behind the grammar's."""

    index: int
    source: Int32
    grammar: SentenceGrammar
    model: NgramModel
    target_begin: Int32
    target: Int32
    target_lm: Int32
    dense: Float64
    sparse_begin: Int64
    sparse_feature: Int32
    sparse_id: Int64


class HieroDecoder(Decoder):
    """CKY parsing with a synchronous grammar and an n-gram model (Chiang 2007), lazy k-best lists.

    Dense features are the grammar's, and, as in cdec, ``LanguageModel`` (log10),
    ``LanguageModel_OOV`` (words that the language model does not know), ``WordPenalty``
    (-log10 e a word), ``PassThrough`` (source words copied to the target side; every word may be)
    and ``Glue`` (uses of S -> S X).

    Parameters
    ----------
    model : Model
        Its grammar and language model. If it has cross-fitted ones, a source of the training
        bitext is decoded with that of its fold (`torchtune_smt.lm.folds.fold_of`).
    templates : sequence of RuleTemplate
        Sparse features.
    k : int
        Length of the k-best lists.
    pop_limit : int
        Combinations tried in a cell of the chart.
    max_span : int
        Source words that an X may cover; longer spans are glued.
    max_words : int
        Longer sentences are refused: memory grows with the square of their length.
    unique : bool
        Whether a list holds each string once, with its best derivation.
    threads : int
        Sentences decoded at a time. The result does not depend on it.

    Raises
    ------
    ValueError
        A limit is below 1.
    """

    def __init__(
        self,
        model: Model,
        *,
        templates: Sequence[RuleTemplate] = (),
        k: int = 100,
        pop_limit: int = 200,
        max_span: int = 15,
        max_words: int = 1000,
        unique: bool = True,
        threads: int = 1,
    ) -> None:
        limits = {
            "k": k,
            "pop_limit": pop_limit,
            "max_span": max_span,
            "max_words": max_words,
            "threads": threads,
        }
        for name, limit in limits.items():
            if limit < 1:
                raise ValueError(f"{name} must be at least 1, not {limit}")
        self.grammar = grammar = model.grammar
        self.models = [model.language_model, *model.folds]
        self.templates = list(templates)
        self.k = k
        self.pop_limit = pop_limit
        self.max_span = max_span
        self.max_words = max_words
        self.unique = unique
        self.words = grammar.target_words
        self.dense_names = [
            *grammar.dense_names,
            LANGUAGE_MODEL,
            UNKNOWN_WORDS,
            WORD_PENALTY,
            PASS_THROUGH,
            GLUE,
        ]
        self.features = Vocabulary(self.dense_names)
        self._rule_features = RuleFeatures(grammar, self.templates, self.features)
        self._lm_words: list[Int32] = [np.empty(0, np.int32) for _ in self.models]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def has_feature(self, name: str) -> bool:
        """Return whether a feature is dense, or of one of the templates."""
        return name in self.dense_names or template_of(name) in {t.name for t in self.templates}

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence (see `Decoder.decode`).

        Every sentence gets a translation: words that no rule covers are passed through, and
        whatever does not parse is glued.

        Raises
        ------
        ValueError
            `k` is below 1, or a sentence is too long.
        """
        size = self.k if k is None else k
        if size < 1:
            raise ValueError(f"k must be at least 1, not {size}")
        for source in sources:
            if len(source.words) > self.max_words:
                raise ValueError(
                    f"sentence {source.index} has {len(source.words)} words, and at most "
                    f"{self.max_words} are decoded; split it, or make the decoder with max_words"
                )
        # Names are interned here, one sentence after the other, so that ids do not depend on
        # threads; the threads below touch nothing that is shared.
        sentences = [self._sentence(source) for source in sources]
        n_dense = len(self.dense_names)
        ids = np.concatenate([np.arange(n_dense), *[s.sparse_id for s in sentences]])
        read = snapshot.read(self.features, ids)
        bounds = np.cumsum([n_dense, *[s.sparse_id.size for s in sentences]])[:-1]
        dense_weight, *sparse_weights = np.split(read, bounds)
        jobs = (sentences, sparse_weights, [dense_weight] * len(sentences), [size] * len(sentences))
        run = map if self._pool is None else self._pool.map
        return KBestLists.of(list(run(self._decode, *jobs)))

    def feature_ids(self, sources: Sequence[Source]) -> Int64:
        """Return the sparse features of all rules that match some sentences."""
        met = np.zeros(0, np.bool_)
        for source in sources:
            _, ids = self._sparse_rows(source, self._grammar_of(source).rule)
            if met.size < len(self.features):
                # A quarter more each time keeps the cost of growing constant per feature.
                room = max(len(self.features), met.size * 5 // 4) - met.size
                met = np.append(met, np.zeros(room, np.bool_))
            met[ids] = True
        return np.flatnonzero(met)

    def fork(self) -> HieroDecoder:
        """Return a decoder like this one, whose vocabulary of features grows on its own."""
        other = super().fork()
        other._rule_features = RuleFeatures(self.grammar, self.templates, other.features)
        return other

    def _grammar_of(self, source: Source) -> SentenceGrammar:
        """Return the rules that can match a sentence."""
        words = self.grammar.source_words.lookup(source.words)
        return self.grammar.sentence_grammar(words, self.max_span, source.train_index)

    def _sparse_rows(self, source: Source, rules: Int64) -> tuple[Int64, Int32]:
        """Return the sparse features of a sentence's rules, and of those that copy its words."""
        if not self.templates:
            return np.zeros(rules.size + len(source.words) + 1, np.int64), np.empty(0, np.int32)
        begin, ids = self._rule_features.rows(rules)
        copied = [self._rule_features.of_word(word) for word in source.words]
        ends = begin[-1] + np.cumsum([row.size for row in copied], dtype=np.int64)
        return np.concatenate([begin, ends]), np.concatenate([ids, *copied])

    def _sentence(self, source: Source) -> _Sentence:
        """Collect the rules of a sentence, with everything that does not depend on weights."""
        m = 0
        if source.train_index >= 0 and len(self.models) > 1:
            m = 1 + fold_of(source.train_index, len(self.models) - 1)
        words = self.grammar.source_words.lookup(source.words)
        copies = self.words.intern(source.words)
        lm_words = self._extended_lm_words(m)
        grammar = self._grammar_of(source)
        target_begin, target, target_lm, dense = local_rules(
            self.grammar.target_begin,
            self.grammar.target_symbols,
            grammar.rule,
            grammar.dense,
            copies,
            lm_words,
            WORD_VALUE,
        )
        sparse_begin, ids = self._sparse_rows(source, grammar.rule)
        sparse_id, sparse_feature = np.unique(ids, return_inverse=True)
        return _Sentence(
            source.index,
            words,
            grammar,
            self.models[m],
            target_begin,
            target,
            target_lm,
            dense,
            sparse_begin,
            sparse_feature.astype(np.int32),
            sparse_id.astype(np.int64),
        )

    def _extended_lm_words(self, m: int) -> Int32:
        """Return model m's word id of every target word, looking up those that are new."""
        known = self._lm_words[m]
        if known.size < len(self.words):
            new = self.words.names(range(known.size, len(self.words)))
            known = np.concatenate([known, self.models[m].word_ids(new)])
            self._lm_words[m] = known
        return known

    def _decode(
        self, sentence: _Sentence, sparse_weight: Float64, dense_weight: Float64, k: int
    ) -> KBest:
        """Decode one sentence; runs in threads."""
        columns = len(self.dense_names)
        lm_column = columns - 5
        lm_weight = float(dense_weight[lm_column])
        table, nodes = sentence.model.tables
        rules = score_rules(
            table,
            nodes,
            sentence.grammar.rule_begin,
            sentence.dense,
            dense_weight,
            sentence.sparse_begin,
            sentence.sparse_feature,
            sparse_weight,
            sentence.target_begin,
            sentence.target_lm,
            lm_weight,
        )
        chart = fill_chart(
            table,
            nodes,
            sentence.model.begin_state,
            sentence.model.end_word,
            sentence.source,
            sentence.grammar.child_begin,
            sentence.grammar.child_symbol,
            sentence.grammar.child_node,
            sentence.grammar.rule_begin,
            rules,
            sentence.target_begin,
            sentence.target_lm,
            self.max_span,
            self.pop_limit,
            lm_weight,
            float(dense_weight[columns - 1]),
        )
        derivations = best_derivations(
            chart, sentence.target_begin, sentence.target, k, self.unique
        )
        token_begin, tokens, row_begin, feature, value, score = read_off(
            chart,
            derivations,
            sentence.source.size,
            sentence.target_begin,
            sentence.target,
            sentence.dense,
            sentence.sparse_begin,
            sentence.sparse_feature,
            sentence.sparse_id,
            lm_column,
            columns - 1,
        )
        return KBest(
            index=sentence.index,
            rows=Rows(row_begin, feature, value),
            features=self.features,
            score=score,
            token_begin=token_begin,
            tokens=tokens,
            words=self.words,
        )
