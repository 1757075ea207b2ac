"""The hierarchical phrase-based decoder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from torchtune_smt.core.accepts import accepting
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
from torchtune_smt.decoders.hiero_kernels import fill_chart
from torchtune_smt.decoders.search_kernels import GLUE_FIRST, Chart, Rules
from torchtune_smt.features.templates import Template
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models.base import Model


class HieroDecoder(GrammarDecoder):
    """CKY parsing with a synchronous grammar and an n-gram model (Chiang 2007), lazy k-best lists.

    Dense features are the grammar's, and, as in cdec, ``LanguageModel`` (log10),
    ``LanguageModel_OOV`` (words that the language model does not know), ``WordPenalty``
    (-log10 e a word), ``PassThrough`` (source words copied to the target side; every word may be)
    and ``Glue`` (uses of S -> S X).

    k: length of the k-best lists.
    pop_limit: combinations tried in a cell of the chart.
    max_span: source words that an X may cover; longer spans are glued.
    others: see `GrammarDecoder`.

    Raises ValueError: a limit is below 1, or the grammar has scores of reordering.
    """

    phrases = False
    own: ClassVar[Mapping[str, Counts]] = {
        "LanguageModel": (0, 0, 0, 0),
        "LanguageModel_OOV": (0, 0, 1, 0),
        "WordPenalty": (0, -math.log10(math.e), 0, 0),
        "PassThrough": (0, 0, 0, 1),
        "Glue": (0, 0, 0, 0),
    }
    accepts = accepting(max_span=LIMIT)

    max_span: int

    def __init__(
        self,
        model: Model,
        *,
        templates: Sequence[Template] = (),
        k: int = 100,
        pop_limit: int = 200,
        max_span: int = 15,
        max_words: int = 1000,
        unique: bool = True,
        unknown: Literal["keep", "drop"] = "keep",
        threads: int = 1,
        seconds: float | None = None,
        keep_mb: float = 0,
    ) -> None:
        if model.grammar.reordering is not None:
            raise ValueError("this model scores how phrases are reordered; take decoder=phrase")
        options: dict[str, Any] = {"k": k, "pop_limit": pop_limit, "max_span": max_span}
        options |= {"max_words": max_words, "unique": unique, "unknown": unknown}
        options |= {"threads": threads, "seconds": seconds, "keep_mb": keep_mb}
        super().__init__(model, max_span, templates, options)
        own = len(model.grammar.dense_names)
        self._columns = Columns(own, -1, -1, own, own, 1.0, own + len(self.own) - 1, -1)

    def _parts(
        self, found: Found, d: int, rules: SentenceRules, source: Source
    ) -> list[Derivation]:
        def tree(d: int, begin: int) -> Derivation:
            """Return a derivation whose source side begins at a word."""
            rule, end, parts = found.rule(d), begin, list[Derivation]()
            whole = rule < rules.grammar.rule.size
            for symbol in self.grammar.sides(rules.grammar.rule[rule])[0] if whole else [0]:
                if symbol < 0:
                    parts.append(tree(found.child(d, len(parts)), end))
                    end = parts[-1].end
                else:
                    end += 1
            return Derivation(*self._sides(rule, rules, source), begin, end, tuple(parts))

        # A sentence without words has no part.
        d, glued = found.child(d, 0), []
        while d >= 0:
            first = found.rule(d) == GLUE_FIRST
            glued.append(found.child(d, 0 if first else 1))
            d = -1 if first else found.child(d, 0)
        parts = list[Derivation]()
        for one in reversed(glued):
            parts.append(tree(one, parts[-1].end if parts else 0))
        return parts

    def _graph(self, sentence: Weighed, scored: Rules, stop: UInt8) -> tuple[Chart, Int32]:
        # Every sentence gets a translation: words that no rule covers are passed through, and
        # whatever does not parse is glued.
        model = self.models[sentence.rules.model]
        chart = fill_chart(
            *model.tables,
            model.begin_state,
            model.end_word,
            sentence.rules.words,
            sentence.rules.grammar,
            scored,
            sentence.targets,
            self.max_span,
            self.pop_limit,
            float(sentence.dense_weight[self._columns.glue]),
            stop,
        )
        return chart, np.empty((0, 4), np.int32)
