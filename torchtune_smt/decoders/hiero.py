"""The hierarchical phrase-based decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torchtune_smt.core.accepts import accepting
from torchtune_smt.core.arrays import UInt8
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
from torchtune_smt.decoders.hiero_kernels import (
    Targets,
    fill_chart,
    local_rules,
    read_off,
    score_rules,
)
from torchtune_smt.decoders.search_kernels import CHILD1, GLUE_FIRST, GLUE_NEXT, RULE, Chart
from torchtune_smt.features.templates import RuleTemplate
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models.base import Model

LANGUAGE_MODEL = "LanguageModel"
UNKNOWN_WORDS = "LanguageModel_OOV"
WORD_PENALTY = "WordPenalty"
PASS_THROUGH = "PassThrough"
GLUE = "Glue"

WORD_VALUE = -math.log10(math.e)


class HieroDecoder(GrammarDecoder[Targets]):
    """CKY parsing with a synchronous grammar and an n-gram model (Chiang 2007), lazy k-best lists.

    Dense features are the grammar's, and, as in cdec, ``LanguageModel`` (log10),
    ``LanguageModel_OOV`` (words that the language model does not know), ``WordPenalty``
    (-log10 e a word), ``PassThrough`` (source words copied to the target side; every word may be)
    and ``Glue`` (uses of S -> S X).

    k: length of the k-best lists.
    pop_limit: combinations tried in a cell of the chart.
    max_span: source words that an X may cover; longer spans are glued.
    model, templates, max_words, unique, unknown, threads, seconds, keep_mb: see `GrammarDecoder`.

    Raises ValueError: a limit is below 1, or the grammar has scores of reordering, which this
        decoder has not.
    """

    phrases = False
    accepts = accepting(max_span=LIMIT)

    max_span: int
    pop_limit: int

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
        unknown: Literal["keep", "drop"] = "keep",
        threads: int = 1,
        seconds: float | None = None,
        keep_mb: float = 0,
    ) -> None:
        if model.grammar.reordering is not None:
            raise ValueError(
                "this model scores how phrases are reordered, which a hierarchical decoder cannot "
                "use; take decoder=phrase"
            )
        own_names = [LANGUAGE_MODEL, UNKNOWN_WORDS, WORD_PENALTY, PASS_THROUGH, GLUE]
        super().__init__(
            model,
            own_names,
            max_span,
            templates,
            max_words=max_words,
            unique=unique,
            unknown=unknown,
            threads=threads,
            seconds=seconds,
            keep_mb=keep_mb,
            k=k,
            pop_limit=pop_limit,
            max_span=max_span,
        )

    def _prepare(self, rules: SentenceRules) -> Targets:
        return local_rules(
            *self.models[rules.model].tables,
            self.grammar.target_begin,
            self.grammar.target_symbols,
            rules.grammar.rule,
            rules.grammar.dense,
            rules.copies,
            rules.lm_words,
            WORD_VALUE,
        )

    def _translate(self, sentence: Weighed[Targets], k: int, stop: UInt8) -> FoundList:
        columns, sparse = len(self.dense_names), sentence.rules.sparse
        chart, derivations = self._search(sentence, k, stop)
        return read_off(
            chart,
            derivations,
            sentence.rules.words.size,
            sentence.prepared,
            sparse,
            columns - 5,
            columns - 1,
        )

    def derivation(self, source: Source, snapshot: Snapshot) -> Derivation:
        """Return the rules of the best translation."""
        sentence = self._weighed(source, snapshot)
        rules = sentence.rules
        with deadline(None) as never:
            chart, found = self._search(sentence, 1, never)

        def child(d: int, number: int) -> int:
            """Return the derivation that another one has for its first (0) or second child."""
            item = chart.edge[found.derivation[d, 0], CHILD1 + number]
            return int(found.pool[found.item[item, 0] + found.derivation[d, RANK1 + number]])

        def tree(d: int, begin: int) -> Derivation:
            """Return a derivation whose source side begins at a word."""
            rule = int(chart.edge[found.derivation[d, 0], RULE])
            if rule >= rules.grammar.rule.size:
                copied = rule - rules.grammar.rule.size
                word = source.words[copied]
                kept = word if rules.copies[copied] >= 0 else ""
                return Derivation(word, kept, begin, begin + 1)
            number = int(rules.grammar.rule[rule])
            left, right = map(" ".join, self.grammar.rule_text(number))
            end, parts = begin, list[Derivation]()
            for symbol in self.grammar.sides(number)[0]:
                if symbol < 0:
                    parts.append(tree(child(d, len(parts)), end))
                    end = parts[-1].end
                else:
                    end += 1
            return Derivation(left, right, begin, end, tuple(parts))

        d = child(int(found.pool[found.item[chart.goal, 0]]), 0)
        glued = []
        while chart.edge[found.derivation[d, 0], RULE] == GLUE_NEXT:
            glued.append(child(d, 1))
            d = child(d, 0)
        # A sentence without words has no part.
        if chart.edge[found.derivation[d, 0], RULE] == GLUE_FIRST:
            glued.append(child(d, 0))
        parts = list[Derivation]()
        for one in reversed(glued):
            parts.append(tree(one, parts[-1].end if parts else 0))
        return Derivation("", "", 0, len(source.words), tuple(parts))

    def _search(self, sentence: Weighed[Targets], k: int, stop: UInt8) -> tuple[Chart, Derivations]:
        """Return the chart of a sentence, and its best derivations; see `_translate`."""
        rules, prepared, sparse_weight, dense_weight = sentence
        # Every sentence gets a translation: words that no rule covers are passed through, and
        # whatever does not parse is glued.
        columns = len(self.dense_names)
        lm_weight = float(dense_weight[columns - 5])
        model = self.models[rules.model]
        table, nodes = model.tables
        scored = score_rules(
            rules.grammar.rule_begin,
            prepared,
            dense_weight,
            rules.sparse,
            sparse_weight,
            lm_weight,
        )
        chart = fill_chart(
            table,
            nodes,
            model.begin_state,
            model.end_word,
            rules.words,
            rules.grammar,
            scored,
            prepared,
            self.max_span,
            self.pop_limit,
            lm_weight,
            float(dense_weight[columns - 1]),
            stop,
        )
        if chart.goal < 0:
            raise OutOfTimeError
        return chart, best_derivations(chart, prepared.begin, prepared.target, k, self.unique)
