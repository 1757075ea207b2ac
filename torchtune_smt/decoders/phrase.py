"""The phrase-based decoder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from torchtune_smt.core.accepts import accepting, integer
from torchtune_smt.core.arrays import Int32, UInt8
from torchtune_smt.decoders.base import Derivation
from torchtune_smt.decoders.derivation_kernels import Columns
from torchtune_smt.decoders.grammar_decoder import (
    LIMIT,
    Counts,
    Found,
    GrammarDecoder,
    SentenceRules,
    Weighed,
)
from torchtune_smt.decoders.phrase_search_kernels import (
    WIDEST,
    Options,
    Reordering,
    options_of,
    search,
    weigh_orientations,
)
from torchtune_smt.decoders.search_kernels import Chart, Rules
from torchtune_smt.decoders.target_kernels import Targets
from torchtune_smt.features.templates import Template
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.reordering import ORIENTATIONS
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models.base import Model

LIMITS = {"pop_limit": 500, "stack_size": 500, "distortion_limit": 6, "table_limit": 20}
"""Limits of the search where neither the options nor the model say any."""


class PhraseDecoder(GrammarDecoder):
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
    others: see `GrammarDecoder`.

    Raises ValueError: a limit is too low, or the grammar has gaps.
    """

    phrases = True
    own: ClassVar[Mapping[str, Counts]] = {
        "Distortion0_0": (0, 0, 0, 0),
        "LM0_0": (0, 0, 0, 0),
        "WordPenalty0_0": (0, -1, 0, 0),
        "PhrasePenalty0_0": (1, 0, 0, 0),
        "UnknownWordPenalty0_0": (0, 0, 0, -100),
    }
    accepts = accepting(
        **dict.fromkeys(("pop_limit", "stack_size", "table_limit"), LIMIT.or_null()),
        distortion_limit=integer(-1, NO_LIMIT).or_null(),
    )

    stack_size: int
    distortion_limit: int

    def __init__(
        self,
        model: Model,
        *,
        templates: Sequence[Template] = (),
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
        given = {"pop_limit": pop_limit, "stack_size": stack_size, "table_limit": table_limit}
        given["distortion_limit"] = distortion_limit
        options: dict[str, Any] = {**LIMITS, **model.limits}
        options |= {name: limit for name, limit in given.items() if limit is not None}
        options |= {"k": k, "max_words": max_words, "unique": unique, "unknown": unknown}
        options |= {"threads": threads, "seconds": seconds, "keep_mb": keep_mb}
        if model.grammar.gaps:
            raise ValueError(
                "it is phrase-based, and this grammar has gaps; take model=phrase or moses"
            )
        # Without a model of reordering, templates still look at how phrases are ordered.
        reordering = model.grammar.reordering
        kind = "msd" if reordering is None else reordering.kind
        super().__init__(model, max_words, templates, options, ORIENTATIONS[kind])
        own = len(model.grammar.dense_names)
        self._kind = list(ORIENTATIONS).index(kind)
        self._hierarchical = reordering is not None and reordering.hierarchical
        first, backward, forward = own, -1, -1
        if reordering is not None:
            first = own - reordering.scores
            backward = first if reordering.backward else -1
            forward = own - reordering.orientations if reordering.forward else -1
        unit = math.log(10.0)
        self._columns = Columns(first, backward, forward, own, own + 1, unit, -1, own)

    def _options(self, rules: SentenceRules, targets: Targets) -> Options:
        return options_of(
            rules.words,
            rules.grammar,
            targets.dense,
            self._columns.forward,
            len(self._orientations),
            rules.sparse,
            self.table_limit,
        )

    def _parts(
        self, found: Found, d: int, rules: SentenceRules, source: Source
    ) -> list[Derivation]:
        phrases = []
        while (before := found.child(d, 0)) >= 0:
            # A sentence without words has no phrase.
            if (rule := found.rule(d)) >= 0:
                first, last = found.span[found.edge(d), :2].tolist()
                sides = self._sides(rule, rules, source)
                phrases.append(Derivation(*sides, first, last + 1))
            d = before
        return phrases[::-1]

    def _graph(self, sentence: Weighed, scored: Rules, stop: UInt8) -> tuple[Chart, Int32]:
        rules, targets, options, sparse_weight, dense_weight = sentence
        # Every sentence gets a translation: words that are no phrase by themselves are copied, and
        # whatever the distortion limit, the next phrase may begin at the first word that is not
        # translated.
        columns, orientations = self._columns, len(self._orientations)
        model = self.models[rules.model]
        weights = dense_weight, rules.sparse, sparse_weight
        backward, forward = (
            weigh_orientations(targets.dense, *weights, first, orientations, row)
            for first, row in ((columns.backward, 1), (columns.forward, 1 + orientations))
        )
        limit = WIDEST if self.distortion_limit < 0 else min(self.distortion_limit, WIDEST)
        return search(
            *model.tables,
            model.begin_state,
            model.end_word,
            scored,
            options.option,
            Reordering(self._kind, self._hierarchical, backward, forward, options.forward_class),
            float(dense_weight[columns.distortion]),
            limit,
            self.pop_limit,
            self.stack_size,
            stop,
        )
