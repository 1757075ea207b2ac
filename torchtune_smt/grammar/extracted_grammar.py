"""Grammars that were extracted from a bitext, scored sentence by sentence from counts."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import gather
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import extracted_kernels as kernels
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.grammar.extracted_kernels import Lexicon, RuleCounts
from torchtune_smt.grammar.extraction_kernels import PERIOD, UNIT
from torchtune_smt.grammar.orientation_kernels import LINK
from torchtune_smt.grammar.phrase_table import RULE_COUNT, UNIQUE_RULE
from torchtune_smt.grammar.trie import Trie

DENSE_NAMES = ["EgivenF", "FgivenE", "LexEgivenF", "LexFgivenE", "RulePenalty"]
COUNT_NAMES = [RULE_COUNT, UNIQUE_RULE]
# Columns that `lexical_scores` writes.
LEXICAL = slice(2, 4)
NO_LINKS = np.empty((0, 2), np.int32)


def count_sentences(arrays: dict[str, np.ndarray]) -> Int32:
    """Return how many sentences have a rule (int32 [rules]); see `ExtractedGrammar`."""
    rules = arrays["rule_source"].size
    return np.bincount(arrays["own_rule"], minlength=rules).astype(np.int32)


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
    sentences of the whole bitext.

    Parameters
    ----------
    source_words, target_words : Vocabulary
        Ids are in the order of the strings.
    arrays : dict of arrays
        `extract_grammar` makes them. Those of `RuleCounts` are called ``counts_...``, those of
        `Lexicon` ``lexicon_...``, those of `Trie` ``trie_...``; others are those of `Grammar`. For
        each training sentence there are its rules, ``own_rule`` (int32, ascending) with counts
        ``own_low`` (int64, units of 1 / UNIT) from ``own_begin`` on, and its word links,
        ``own_link`` (int32 [links, 2], with those to NULL) from ``own_link_begin`` on. Where word
        alignments were kept, ``point`` (int32) and ``point_begin`` have them
        (`orientation_kernels.LINK`), each once, and ``rule_alignment`` (int32 [rules]) says which
        is the one in most sentences that a rule occurs in. In how many it does is in
        ``rule_sentences`` (int32 [rules]), which those of earlier versions do not have.
    table_limit : int
    rule_counts : bool
        Two more features: ``LogRuleCount``, log10 of the rule's count, and ``UniqueRule``, 1 where
        it occurred in one sentence alone.
    """

    def __init__(
        self,
        source_words: Vocabulary,
        target_words: Vocabulary,
        arrays: dict[str, np.ndarray],
        *,
        table_limit: int = 30,
        rule_counts: bool = False,
    ) -> None:
        check_whole("table_limit", table_limit, 1)
        self.source_words, self.target_words = source_words, target_words
        self.dense_names = [*DENSE_NAMES, *(COUNT_NAMES if rule_counts else [])]
        self.table_limit = table_limit
        self.arrays = arrays
        self.trie = Trie(arrays["trie_symbol"], arrays["trie_child_begin"])
        self.node_source = arrays["node_source"]
        self.source_begin, self.source_symbols = arrays["source_begin"], arrays["source_symbols"]
        self.target_begin, self.target_symbols = arrays["target_begin"], arrays["target_symbols"]
        self.rule_source = arrays["rule_source"]
        self.counts = RuleCounts(*(arrays[f"counts_{name}"] for name in RuleCounts._fields))
        self.lexicon = Lexicon(*(arrays[f"lexicon_{name}"] for name in Lexicon._fields))
        self.source_rule_begin = self.counts.rule_begin
        # Those that were built by earlier versions have no alignments.
        self.point_begin = arrays.get("point_begin")
        if self.point_begin is not None:
            self.points = np.stack([arrays["point"] // LINK, arrays["point"] % LINK], axis=1)
        self.rule_alignment = arrays.get("rule_alignment")
        # Lexical scores of whole counts, found when rules are first met: pages of zeros cost
        # nothing.
        self._lexical = np.zeros((self.rule_source.size, 2))
        self._has_lexical = np.zeros(self.rule_source.size, np.bool_)
        self._has_counts = rule_counts

    def with_rule_counts(self) -> ExtractedGrammar:
        """Return the grammar with features of how often its rules occurred."""
        return ExtractedGrammar(
            self.source_words,
            self.target_words,
            self.arrays,
            table_limit=self.table_limit,
            rule_counts=True,
        )

    @cached_property
    def _sentences(self) -> Int32:
        """In how many sentences rules occur."""
        sentences = self.arrays.get("rule_sentences")
        return count_sentences(self.arrays) if sentences is None else sentences

    @property
    def n_sentences(self) -> int:
        """How many sentence pairs the grammar was extracted from."""
        return self.arrays["own_begin"].size - 1

    def _rules(self, node: Int32, words: Int32, train_index: int) -> tuple[Int32, Int64, Float64]:
        if train_index >= self.n_sentences:
            raise ValueError(
                f"there is no training sentence {train_index}: the grammar was extracted from "
                f"{self.n_sentences}"
            )
        rules, links = slice(0, 0), slice(0, 0)
        if train_index >= 0:
            rules = self._own(train_index)
            links = slice(*self.arrays["own_link_begin"][train_index : train_index + 2].tolist())
            linked = np.unique(self.arrays["own_link"][links, 0])
            if not np.array_equal(linked[linked < self.lexicon.begin.size - 2], words):
                raise InputError(
                    f"training sentence {train_index} of the grammar has other words than this "
                    "sentence; number sentences as in the bitext that the grammar is from"
                )
        begin, rule, dense = kernels.select(
            node,
            self.node_source,
            self.counts,
            self.arrays["own_rule"][rules],
            self.arrays["own_low"][rules],
            self.table_limit,
        )
        if train_index >= 0:
            self._add_lexical_scores(words, rule, self.arrays["own_link"][links], dense)
        else:
            dense[:, LEXICAL] = self._lexical_scores(words, rule)
        return begin, rule, self._with_counts(rule, dense, rules)

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
        return self._with_counts(rule, dense, slice(0, 0))

    def _with_counts(self, rule: Int64, dense: Float64, own: slice) -> Float64:
        """Return all features of rules, given those that are always there.

        Parameters
        ----------
        own : slice
            The rules, among ``own_rule``, of the sentence that is left out.
        """
        if not self._has_counts:
            return dense
        unique = self._sentences_without(rule, own) == 1
        return np.column_stack([dense, np.log10(self._counts_without(rule, own)), unique])

    def _sentences_without(self, rule: Int64, own: slice) -> Int32:
        """Return in how many sentences but one rules occur; `own` as in `_with_counts`."""
        sentences = self._sentences[rule]
        here, _ = self._places_of_own(rule, own)
        sentences[here] -= 1
        return sentences

    def _counts_without(self, rule: Int64, own: slice) -> Float64:
        """Return how often rules occurred but for a sentence; `own` as in `_with_counts`."""
        counts = self.counts.rule_count[rule]
        here, place = self._places_of_own(rule, own)
        low = self.counts.rule_low[rule][here] - self.arrays["own_low"][own][place]
        counts[here] -= self.arrays["own_low"][own][place] / UNIT
        # As `exact_count`: what is left of a sum is what was never added to.
        counts[here] = np.rint((counts[here] - low / UNIT) / PERIOD) * PERIOD + low / UNIT
        return counts

    def _places_of_own(self, rule: Int64, own: slice) -> tuple[Bool, Int64]:
        """Return which rules are among a sentence's own ones, and where these stand there."""
        own_rule = self.arrays["own_rule"][own]
        if own_rule.size == 0:
            return np.zeros(rule.size, np.bool_), np.empty(0, np.int64)
        place = np.minimum(np.searchsorted(own_rule, rule), own_rule.size - 1)
        here = own_rule[place] == rule
        return here, place[here]

    def rule_counts(self, rule: Int64) -> Float64:
        """Return in how many sentences rules occurred, float64 [rules].

        What probabilities are made of says nothing of that: shares of the phrases of a sentence,
        most of them far below 1.
        """
        return self._sentences[rule].astype(np.float64)

    def rule_counts_without(self, rule: Int64, train_index: int) -> Float64:
        """Return in how many training sentences but one rules occurred."""
        return self._sentences_without(rule, self._own(train_index)).astype(np.float64)

    def _own(self, train_index: int) -> slice:
        """Return which of ``own_rule`` are a sentence's."""
        return slice(*self.arrays["own_begin"][train_index : train_index + 2].tolist())

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
