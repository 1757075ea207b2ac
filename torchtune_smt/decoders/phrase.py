"""The phrase-based decoder."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Literal

import numpy as np

from torchtune_smt.core.accepts import accepting, check_arguments, integer
from torchtune_smt.core.arrays import Int32, UInt8
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.decoders.base import Derivation
from torchtune_smt.decoders.derivation_kernels import RANK1, Derivations, best_derivations
from torchtune_smt.decoders.grammar_decoder import (
    LIMIT,
    FoundList,
    GrammarDecoder,
    OutOfTimeError,
    SentenceRules,
    Weighed,
    deadline,
)
from torchtune_smt.decoders.phrase_option_kernels import (
    LOG_10,
    Columns,
    Options,
    lay_out,
    read_off,
    score_alone,
    score_options,
    weigh_orientations,
)
from torchtune_smt.decoders.phrase_search_kernels import WIDEST, Reordering, search
from torchtune_smt.decoders.search_kernels import CHILD1, RULE, Chart
from torchtune_smt.features.templates import RuleTemplate
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.reordering import ORIENTATIONS
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models.base import Model

DISTORTION = "Distortion0_0"
LANGUAGE_MODEL = "LM0_0"
WORD_PENALTY = "WordPenalty0_0"
PHRASE_PENALTY = "PhrasePenalty0_0"
UNKNOWN_WORDS = "UnknownWordPenalty0_0"

LIMITS = {"pop_limit": 500, "stack_size": 500, "distortion_limit": 6, "table_limit": 20}
"""Limits of the search where neither the options nor the model say any."""


class PhraseDecoder(GrammarDecoder[Options]):
    """Multi-stack beam search with cube pruning (Koehn 2004; Huang & Chiang 2007), lazy lists.

    Dense features are named and defined as in Moses: the table's scores (``TranslationModel0_0``
    ...) and those of lexicalised reordering, ``Distortion0_0`` (source words jumped over,
    negative), ``LM0_0`` (natural logarithm), ``WordPenalty0_0`` (-1 a word), ``PhrasePenalty0_0``
    (1 a phrase) and ``UnknownWordPenalty0_0`` (-100 for each word that is copied, which is one that
    is no phrase by itself).

    k: length of the k-best lists.
    pop_limit: candidates that a stack takes. Here and below, the model's own limit (`Model.limits`)
        by default, or else that of `LIMITS`.
    stack_size: hypotheses of a stack that go on.
    distortion_limit: source words between the end of a phrase and the next one, at most; -1 is no
        limit. What is further than `WIDEST` words from the first one that is not translated has to
        wait.
    table_limit: phrases of a source side, at most: those with the best scores, the language model's
        of the phrase by itself among them.
    model, templates, max_words, unique, unknown, threads, seconds, keep_mb: see `GrammarDecoder`;
        the grammar of the model has no gaps.

    Raises ValueError: a limit is too low, or the grammar has gaps.
    """

    phrases = True
    accepts = accepting(
        **dict.fromkeys(("pop_limit", "stack_size", "table_limit"), LIMIT.or_null()),
        distortion_limit=integer(-1, NO_LIMIT).or_null(),
    )

    pop_limit: int
    stack_size: int
    table_limit: int

    def __init__(
        self,
        model: Model,
        *,
        templates: Sequence[RuleTemplate] = (),
        k: int = 100,
        pop_limit: int | None = None,
        stack_size: int | None = None,
        distortion_limit: int | None = None,
        table_limit: int | None = None,
        max_words: int = 1000,
        unique: bool = True,
        unknown: Literal["keep", "drop"] = "keep",
        threads: int = 1,
        seconds: float | None = None,
        keep_mb: float = 0,
    ) -> None:
        given = {
            "pop_limit": pop_limit,
            "stack_size": stack_size,
            "distortion_limit": distortion_limit,
            "table_limit": table_limit,
        }
        limits = {**LIMITS, **model.limits}
        limits |= {name: limit for name, limit in given.items() if limit is not None}
        self.distortion_limit = limits.pop("distortion_limit")
        check_arguments(PhraseDecoder, {"distortion_limit": self.distortion_limit})
        if model.grammar.gaps:
            raise ValueError(
                "it is phrase-based, and this grammar has gaps; take model=phrase or moses"
            )
        # Without a model of reordering, templates still look at how phrases are ordered.
        reordering = model.grammar.reordering
        kind = "msd" if reordering is None else reordering.kind
        super().__init__(
            model,
            [DISTORTION, LANGUAGE_MODEL, WORD_PENALTY, PHRASE_PENALTY, UNKNOWN_WORDS],
            max_words,
            templates,
            orientations=ORIENTATIONS[kind],
            max_words=max_words,
            unique=unique,
            unknown=unknown,
            threads=threads,
            seconds=seconds,
            keep_mb=keep_mb,
            k=k,
            **limits,
        )
        own = len(model.grammar.dense_names)
        self._kind = list(ORIENTATIONS).index(kind)
        self._hierarchical = reordering is not None and reordering.hierarchical
        backward = forward = -1
        if reordering is not None:
            forward = own - reordering.orientations if reordering.forward else -1
            backward = own - reordering.scores if reordering.backward else -1
        self._columns = Columns(backward, forward, own, own + 1, own + 2, own + 3, own + 4)
        # Scores of the phrases by themselves in each model, found when they are first met: pages
        # of zeros cost nothing.
        self._alone = [
            (np.zeros((len(self.grammar), 3), np.int32), np.zeros(len(self.grammar)))
            for _ in self.models
        ]
        self._alone_lock = Lock()

    def _prepare(self, rules: SentenceRules) -> Options:
        options = lay_out(
            rules.words,
            rules.grammar,
            self.grammar.target_begin,
            self.grammar.target_symbols,
            rules.copies,
            rules.lm_words,
            len(self.dense_names),
            self._columns,
            len(self._orientations),
            rules.sparse,
            self.table_limit,
        )
        # Who finds a phrase that somebody has begun to write down would take it for whole.
        with self._alone_lock:
            score_alone(
                *self.models[rules.model].tables,
                rules.grammar.rule,
                options.lm_begin,
                options.lm_word,
                *self._alone[rules.model],
            )
        return options

    def _translate(self, sentence: Weighed[Options], k: int, stop: UInt8) -> FoundList:
        return read_off(
            *self._search(sentence, k, stop),
            sentence.prepared,
            self._columns,
            len(self._orientations),
            sentence.rules.sparse,
        )

    def derivation(self, source: Source, snapshot: Snapshot) -> Derivation:
        """Return the phrases of the best translation, in the order of the target side."""
        sentence = self._weighed(source, snapshot)
        rules = sentence.rules
        with deadline(None) as never:
            chart, span, found = self._search(sentence, 1, never)
        phrases = []
        d = int(found.pool[found.item[chart.goal, 0]])
        while chart.edge[found.derivation[d, 0], CHILD1] >= 0:
            edge, rank = chart.edge[found.derivation[d, 0]], found.derivation[d, RANK1]
            rule, copied = int(edge[RULE]), int(edge[RULE]) - rules.grammar.rule.size
            # A sentence without words has no phrase.
            if rule >= 0:
                if copied < 0:
                    sides = self.grammar.rule_text(int(rules.grammar.rule[rule]))
                    left, right = map(" ".join, sides)
                else:
                    left = source.words[copied]
                    right = left if rules.copies[copied] >= 0 else ""
                first, last = span[found.derivation[d, 0], :2].tolist()
                phrases.append(Derivation(left, right, first, last + 1))
            d = int(found.pool[found.item[edge[CHILD1], 0] + rank])
        return Derivation("", "", 0, len(source.words), tuple(reversed(phrases)))

    def _search(
        self, sentence: Weighed[Options], k: int, stop: UInt8
    ) -> tuple[Chart, Int32, Derivations]:
        """Return the graph of a sentence, where its phrases stand, and its best derivations."""
        rules, options, sparse_weight, dense_weight = sentence
        # Every sentence gets a translation: words that are no phrase by themselves are copied, and
        # whatever the distortion limit, the next phrase may begin at the first word that is not
        # translated.
        columns, orientations, sparse = self._columns, len(self._orientations), rules.sparse
        lm_weight = float(dense_weight[columns.language_model]) * LOG_10
        model = self.models[rules.model]
        table, nodes = model.tables
        # What a phrase scores wherever it stands: no orientation.
        own_weight = dense_weight.copy()
        for first in (columns.backward, columns.forward):
            if first >= 0:
                own_weight[first : first + orientations] = 0.0
        scored = score_options(
            table,
            nodes,
            rules.grammar,
            *self._alone[rules.model],
            options,
            own_weight,
            sparse,
            sparse_weight,
            lm_weight,
            self.table_limit,
        )
        backward, forward = (
            weigh_orientations(
                options.dense,
                dense_weight,
                first,
                orientations,
                sparse,
                sparse_weight,
                offset,
            )
            for first, offset in ((columns.backward, 1), (columns.forward, 1 + orientations))
        )
        limit = WIDEST if self.distortion_limit < 0 else min(self.distortion_limit, WIDEST)
        chart, span = search(
            table,
            nodes,
            model.begin_state,
            model.end_word,
            scored,
            options.option,
            Reordering(self._kind, self._hierarchical, backward, forward, options.forward_class),
            lm_weight,
            float(dense_weight[columns.distortion]),
            limit,
            self.pop_limit,
            self.stack_size,
            stop,
        )
        if chart.goal < 0:
            raise OutOfTimeError
        found = best_derivations(chart, options.begin, options.symbol, k, self.unique)
        return chart, span, found
