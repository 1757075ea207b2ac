"""What was extracted from a bitext, scored sentence by sentence from counts."""

from __future__ import annotations

from collections.abc import MutableMapping
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.accepts import integer
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import gather, offsets, places_of
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import extracted_kernels as kernels
from torchtune_smt.grammar.base import RULE_COUNT, UNIQUE_RULE, Grammar, Trie
from torchtune_smt.grammar.extracted_kernels import Lexicon, RuleCounts
from torchtune_smt.grammar.extraction_kernels import LINK, PERIOD, UNIT
from torchtune_smt.grammar.reordering import ReorderingType, reordering_names

DENSE_NAMES = ["EgivenF", "FgivenE", "LexEgivenF", "LexFgivenE", "RulePenalty"]
COUNT_NAMES = [RULE_COUNT, UNIQUE_RULE]
# Columns that `lexical_scores` writes.
LEXICAL = slice(2, 4)
NO_LINKS = np.empty((0, 2), np.int32)
OF_RULES = (
    "node_source source_begin source_symbols rule_source target_begin target_symbols point_begin"
).split()


class LeftOut(NamedTuple):
    """Rules of training sentences that are left out, and what these added to their counts.

    rule (int32 [n]): ascending, none twice.
    place: which of ``own_rule`` they are, rule after rule for each sentence.
    into: the place in `rule` of each of these, where there are several sentences.
    """

    rule: Int32
    place: slice | Int64
    into: Int64 | None = None

    def total(self, own: NDArray[Any]) -> NDArray[Any]:
        """Return the sums [n, ...] of what each sentence added: `own` is beside ``own_rule``."""
        added = own[self.place]
        if self.into is None:
            return added
        total = np.zeros((self.rule.size, *added.shape[1:]), np.int64)
        np.add.at(total, self.into, added)
        return total

    @property
    def sentences(self) -> Int64:
        """In how many of the sentences each rule occurs."""
        into = np.arange(self.rule.size) if self.into is None else self.into
        return np.bincount(into, minlength=self.rule.size)


NOTHING = LeftOut(np.empty(0, np.int32), slice(0, 0))


class ExtractedGrammar(Grammar):
    """A grammar that keeps the counts of its extraction, and what each sentence added to them.

    Features of a rule, all log10: ``EgivenF`` and ``FgivenE``, the relative frequencies of target
    given source side and the reverse; ``LexEgivenF`` and ``LexFgivenE``, for each word of one side
    the largest w(.|.) over the words of the other side and NULL, multiplied (Koehn et al. 2003
    with the largest in place of the mean, so that no alignment of the rule is needed); and
    ``RulePenalty``, 1. The grammar of a sentence holds, of each source side, the `table_limit` most
    frequent rules (ties: the shorter target side, then by its symbols).

    With a `train_index`, `sentence_grammar` returns exactly what an extraction without this
    sentence (and with the same alignments of the others) gives: its counts are subtracted, rules
    with no count left disappear, probabilities and lexical weights are estimated anew, and the
    table limit is applied afterwards. The alignment of a rule (`links`) alone is that in most
    sentences of the whole bitext. Other sentence pairs of the same words stay, unless the grammar
    is one of `leaving_out_identical`.

    source_words, target_words: ids are in the order of the strings.
    arrays: `extract_grammar` makes them. Those of `RuleCounts` are called ``counts_...``, those of
        `Lexicon` ``lexicon_...``, those of `Trie` ``trie_...``; others are those of `Grammar`. For
        each training sentence there are its rules, ``own_rule`` (int32, ascending) with counts
        ``own_low`` (int64, units of 1 / UNIT) from ``own_begin`` on, and its word links,
        ``own_link`` (int32 [links, 2], with those to NULL) from ``own_link_begin`` on. Where word
        alignments were kept, ``point`` (int32) and ``point_begin`` have them
        (`extraction_kernels.LINK`), each once, and ``rule_alignment`` (int32 [rules]) says which is
        the one in most sentences that a rule occurs in. In how many it does is in
        ``rule_sentences`` (int32 [rules]), and ``identical`` (int32 [sentences]) is the first
        sentence pair of the same words as each.
    """

    def __init__(
        self,
        source_words: Vocabulary,
        target_words: Vocabulary,
        arrays: MutableMapping[str, NDArray[Any]],
        *,
        table_limit: int = 30,
    ) -> None:
        integer(1).check("table_limit", table_limit)
        self.source_words, self.target_words = source_words, target_words
        self.dense_names = list(DENSE_NAMES)
        self.table_limit = table_limit
        self.arrays = arrays
        self.trie = Trie(arrays["trie_symbol"], arrays["trie_child_begin"])
        for name in OF_RULES:
            setattr(self, name, arrays[name])
        self.counts = RuleCounts(*(arrays[f"counts_{name}"] for name in RuleCounts._fields))
        self.lexicon = Lexicon(*(arrays[f"lexicon_{name}"] for name in Lexicon._fields))
        self.source_rule_begin = self.counts.rule_begin
        self.points = np.stack([arrays["point"] // LINK, arrays["point"] % LINK], axis=1)
        # Phrases have one each.
        self.rule_alignment = arrays.get("rule_alignment")
        # Lexical scores of whole counts, found when rules are first met: pages of zeros cost
        # nothing.
        self._lexical = np.zeros((self.rule_source.size, 2))
        self._has_lexical = np.zeros(self.rule_source.size, np.bool_)
        self._has_counts = False
        self._identical: Int32 | None = None

    def with_rule_counts(self) -> Self:
        """Return the grammar with ``LogRuleCount``, log10 of a count, and ``UniqueRule``."""
        other = copy(self)
        other.dense_names, other._has_counts = [*DENSE_NAMES, *COUNT_NAMES], True
        return other

    def leaving_out_identical(self) -> Self:
        """Return the grammar, which leaves out all sentence pairs of the same words together."""
        other = copy(self)
        other._identical = self.arrays["identical"]
        return other

    def left_out_first(self, train_index: int) -> int:
        """Return the first of the sentences that are left out together with one."""
        return train_index if self._identical is None else int(self._identical[train_index])

    def _rules(self, node: Int32, words: Int32, train_index: int) -> tuple[Int32, Int64, Float64]:
        sentences = self.arrays["own_begin"].size - 1
        if train_index >= sentences:
            raise ValueError(f"there is no training sentence {train_index}, of {sentences}")
        own, links = self._own(train_index), NO_LINKS
        if train_index >= 0:
            number = self._left_out(train_index)
            links = gather(self.arrays["own_link_begin"], self.arrays["own_link"], number)[1]
            linked = np.unique(links[:, 0])
            if not np.array_equal(linked[linked < self.lexicon.begin.size - 2], words):
                raise InputError(
                    f"training sentence {train_index} of the grammar has other words than this "
                    "sentence; number sentences as in the bitext that the grammar is from"
                )
        low = own.total(self.arrays["own_low"])
        begin, rule, dense = kernels.select(
            node, self.node_source, self.counts, own.rule, low, self.table_limit
        )
        if train_index >= 0:
            self._add_lexical_scores(words, rule, links, dense)
        else:
            dense[:, LEXICAL] = self._lexical_scores(words, rule)
        return begin, rule, self._with_counts(rule, dense, own)

    def values(self, rule: Int64) -> Float64:
        """Return the feature values of rules, float64 [rules, features]."""
        dense = np.ones((rule.size, len(DENSE_NAMES)))
        dense[:, :2] = self.counts.log_p[rule]
        # In pieces, as the kernel makes a matrix of all their source and target words.
        for begin in range(0, rule.size, 256):
            piece = slice(begin, begin + 256)
            sides = np.unique(self.rule_source[rule[piece]]).astype(np.int64)
            words = np.unique(gather(self.source_begin, self.source_symbols, sides)[1])
            self._add_lexical_scores(words[words >= 0], rule[piece], NO_LINKS, dense[piece])
        return self._with_counts(rule, dense, NOTHING)

    def _with_counts(self, rule: Int64, dense: Float64, own: LeftOut) -> Float64:
        """Return all features of rules, given those that are always there."""
        if not self._has_counts:
            return dense
        unique = self._sentences_without(rule, own) == 1
        return np.column_stack([dense, np.log10(self._counts_without(rule, own)), unique])

    def _sentences_without(self, rule: Int64, own: LeftOut) -> Int32:
        """Return in how many sentences rules occur but for some."""
        sentences: Int32 = self.arrays["rule_sentences"][rule]
        here, place = self._places_of_own(rule, own)
        sentences[here] -= own.sentences[place].astype(np.int32)
        return sentences

    def _counts_without(self, rule: Int64, own: LeftOut) -> Float64:
        """Return how often rules occurred but for some sentences."""
        counts = self.counts.rule_count[rule]
        here, place = self._places_of_own(rule, own)
        taken = own.total(self.arrays["own_low"])[place]
        low = self.counts.rule_low[rule][here] - taken
        counts[here] -= taken / UNIT
        # As `exact_count`: what is left of a sum is what was never added to.
        counts[here] = np.rint((counts[here] - low / UNIT) / PERIOD) * PERIOD + low / UNIT
        return counts

    def _places_of_own(self, rule: Int64, own: LeftOut) -> tuple[Bool, Int64]:
        """Return which rules are among those left out, and where these stand there."""
        if own.rule.size == 0:
            return np.zeros(rule.size, np.bool_), np.empty(0, np.int64)
        place = np.minimum(np.searchsorted(own.rule, rule), own.rule.size - 1)
        here = own.rule[place] == rule
        return here, place[here]

    def rule_counts(self, rule: Int64) -> Float64:
        """Return in how many sentences rules occurred: their counts are mostly far below 1."""
        return self.arrays["rule_sentences"][rule].astype(np.float64)

    def rule_counts_without(self, rule: Int64, train_index: int) -> Float64:
        """Return in how many training sentences but those left out with one rules occurred."""
        return self._sentences_without(rule, self._own(train_index)).astype(np.float64)

    @cached_property
    def _twins(self) -> tuple[Int64, Int64]:
        """Sentences, those left out together in a row, and where they begin: by the first one."""
        assert self._identical is not None
        begin = offsets(np.bincount(self._identical, minlength=self._identical.size))
        return np.argsort(self._identical, kind="stable"), begin

    def _left_out(self, train_index: int) -> Int64:
        """Return which sentences are left out where one is decoded."""
        if self._identical is None:
            return np.array([train_index])
        (order, begin), first = self._twins, self._identical[train_index]
        return order[begin[first] : begin[first + 1]]

    def _own(self, train_index: int) -> LeftOut:
        """Return what is left out where a sentence is decoded; nothing for -1."""
        if train_index < 0:
            return NOTHING
        number, own_rule = self._left_out(train_index), self.arrays["own_rule"]
        if number.size == 1:
            span = slice(*self.arrays["own_begin"][number[0] : number[0] + 2].tolist())
            return LeftOut(own_rule[span], span)
        _, place = places_of(self.arrays["own_begin"], number)
        rule, into = np.unique(own_rule[place], return_inverse=True)
        return LeftOut(rule, place, into)

    def _lexical_scores(self, words: Int32, rule: Int64) -> Float64:
        """Return the lexical scores of rules, float64 [rules, 2]; those met before are known."""
        new = rule[~self._has_lexical[rule]]
        if new.size:
            dense = np.empty((new.size, len(DENSE_NAMES)))
            self._add_lexical_scores(words, new, NO_LINKS, dense)
            self._lexical[new] = dense[:, LEXICAL]
            # Behind the scores: another thread may look.
            self._has_lexical[new] = True
        return self._lexical[rule]

    def _add_lexical_scores(
        self, words: Int32, rule: Int64, own_link: Int32, dense: Float64
    ) -> None:
        kernels.lexical_scores(
            words,
            rule,
            self.rule_source,
            self.source_begin,
            self.source_symbols,
            self.target_begin,
            self.target_symbols,
            self.lexicon,
            own_link,
            dense,
        )


PHRASE_NAMES = [*(f"TranslationModel0_{i}" for i in range(4)), RULE_COUNT, UNIQUE_RULE]
# The columns of `ExtractedGrammar` in Moses's order: p(f|e), lex(f|e), p(e|f), lex(e|f).
_MOSES_ORDER = [1, 3, 0, 2]
# What is added to each count of an orientation, as in Moses.
_SMOOTHING = 0.5
# Of monotone, swap, discontinuous right and left, the column of each kind of model.
_COLUMNS = {
    "msd": [0, 1, 2, 2],
    "mslr": [0, 1, 3, 2],
    "monotonicity": [0, 1, 1, 1],
    "leftright": [0, 1, 0, 1],
}


class ExtractedPhrases(ExtractedGrammar):
    """A phrase table with reordering scores that keeps the counts of its extraction.

    Features of a phrase pair, logarithms being natural ones: ``TranslationModel0_0`` to ``_3``,
    p(f|e), lex(f|e), p(e|f), lex(e|f), as `ExtractedGrammar` has them; ``LogRuleCount``, of how
    often it occurred; ``UniqueRule``, 1 where that is once; and ``LexicalReordering0_0`` ..., for
    each orientation (count + 0.5) / (sum + 0.5 orientations).

    With a `train_index`, all are those of an extraction without the sentence.

    arrays: `extract_phrases` makes them, and adds ``orientation`` (int32 [rules, 8]: how often a
        phrase was monotone, swapped, discontinuous to the right and to the left, towards what is
        before it, then towards what is behind it), ``own_orientation`` (int16 [own rules, 8], the
        part of each sentence), and ``point_begin`` (int64 [rules + 1]) with ``point`` (int32): the
        links in most sentences that a phrase occurs in, see `extraction_kernels.LINK`.
    reordering: with target sides.
    """

    gaps = False

    def __init__(
        self,
        source_words: Vocabulary,
        target_words: Vocabulary,
        arrays: MutableMapping[str, NDArray[Any]],
        *,
        reordering: ReorderingType,
        table_limit: int = 100,
    ) -> None:
        super().__init__(source_words, target_words, arrays, table_limit=table_limit)
        self.reordering: ReorderingType = reordering
        self.dense_names = [*PHRASE_NAMES, *reordering_names(reordering)]

    def _with_counts(self, rule: Int64, dense: Float64, own: LeftOut) -> Float64:
        counts = self.counts.rule_count[rule]
        orientation = self.arrays["orientation"][rule].astype(np.float64)
        here, place = self._places_of_own(rule, own)
        counts[here] -= own.total(self.arrays["own_low"])[place] / UNIT
        orientation[here] -= own.total(self.arrays["own_orientation"])[place]
        kind = self.reordering
        belongs = np.zeros((4, kind.orientations))
        belongs[range(4), _COLUMNS[kind.kind]] = 1.0
        directions = [d for d, used in enumerate((kind.backward, kind.forward)) if used]
        of_kind = orientation.reshape(-1, 2, 4)[:, directions] @ belongs
        total = counts[:, None, None] + _SMOOTHING * kind.orientations
        scores = np.log((of_kind + _SMOOTHING) / total).reshape(rule.size, kind.scores)
        logs = dense[:, _MOSES_ORDER] * np.log(10.0)
        return np.column_stack([logs, np.log(counts), counts == 1.0, scores])

    def rule_counts(self, rule: Int64) -> Float64:
        """Return how often phrase pairs occurred, float64 [rules]."""
        return self.counts.rule_count[rule]

    def rule_counts_without(self, rule: Int64, train_index: int) -> Float64:
        """Return how often phrase pairs occurred but for the sentences left out with one."""
        return self._counts_without(rule, self._own(train_index))
