"""Extraction of a hierarchical grammar (Chiang 2007), or of phrases, from an aligned bitext."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core import sorting_kernels
from torchtune_smt.core.accepts import accepting, check_arguments, integer, one_of
from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import gather, offsets
from torchtune_smt.core.sequences_kernels import number_equal
from torchtune_smt.core.vocabulary import SequenceTable, Vocabulary
from torchtune_smt.grammar import extracted_kernels, extraction_kernels
from torchtune_smt.grammar.alignment import Alignment
from torchtune_smt.grammar.base import Trie, ordered_trie
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar, ExtractedPhrases
from torchtune_smt.grammar.extracted_kernels import RuleCounts
from torchtune_smt.grammar.extraction_kernels import (
    BLOCKS,
    PHRASES,
    WORDS,
    Aligned,
    Shape,
    find_orientations,
)
from torchtune_smt.grammar.reordering import ReorderingType

_BLOCK = 500  # sentences whose rules are held before equal ones are merged


class NumberedBitext(NamedTuple):
    """A bitext as ids of words, which are in the order of the strings, with its links."""

    source_words: Vocabulary
    target_words: Vocabulary
    aligned: Aligned


# What else is to be known of each rule that `extract` finds in sentences first..last-1, in its
# order: what is added up (int32 [rules, c]), and what the first one decides (int32).
Attached = Callable[[int, int], tuple[Int32, Int32]]

EXTRACTED: Final = accepting(
    max_phrase_length=integer(1, 100),
    max_symbols=integer(1, 100),
    max_gaps=integer(0, 2),
    unaligned_edges=one_of(False, True, "phrases"),
    counts=one_of("shared", "occurrences"),
)
"""What may be asked of an extraction."""


def extract_grammar(
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    alignments: Sequence[Alignment],
    *,
    max_phrase_length: int = 10,
    max_symbols: int = 5,
    max_gaps: int = 2,
    unaligned_edges: bool | Literal["phrases"] = False,
    counts: Literal["shared", "occurrences"] = "shared",
    table_limit: int = 30,
    arrays: MutableMapping[str, NDArray[Any]] | None = None,
) -> ExtractedGrammar:
    """Extract a grammar, with all that is needed to leave out any one sentence again.

    Source: Chiang 2007, section 3.2. Initial phrases are consistent with the alignment, have one
    link at least and at most `max_phrase_length` words on either side. A rule is an initial phrase
    with up to `max_gaps` smaller ones replaced by X, which do not touch on the source side; it has
    one pair of aligned words at least, and at most `max_symbols` symbols on the source side.

    Raises InputError: numbers of sentences differ, or a link leads out of its sentences.

    sources, targets: the bitext; a pair with an empty side gives no rules.
    alignments (sequence of int32 [links, 2]): (source, target) positions.
    unaligned_edges (bool or "phrases"): whether the words at the edges of an initial phrase may be
        unaligned. Chiang has them aligned, which is the default: of phrases with the same links the
        smallest. "phrases": they may, but not where a phrase leaves a gap in another.
    counts ("shared", "occurrences"): an initial phrase counts 1, shared equally by the rules that
        it yields (Chiang), or each rule counts 1 whenever it occurs.
    table_limit: of the result: see `ExtractedGrammar`.
    arrays: where its arrays are kept, as an empty `ArraysOnDisk`; in memory, by default.
    """
    check_arguments(EXTRACTED, locals())
    bitext = _number_bitext(sources, targets, alignments)
    tight_gaps = unaligned_edges == "phrases"
    shape = Shape(max_phrase_length, max_symbols, max_gaps, bool(unaligned_edges), tight_gaps)
    kept = SequenceTable(np.int32, 1024)

    def attached(first: int, last: int) -> tuple[Int32, Int32]:
        """Return nothing to add up, and which alignment each occurrence of a rule has."""
        begin, point = extraction_kernels.find_links(bitext.aligned, first, last, shape)
        own = kept.intern_spans(point, begin[:-1], begin[1:])
        return np.zeros((own.size, 0), np.int32), own

    arrays = {} if arrays is None else arrays
    _, usual = _count_rules(bitext, shape, counts == "shared", attached, arrays)
    arrays["rule_alignment"] = usual.astype(np.int32)
    arrays["point_begin"], arrays["point"] = kept.begin.copy(), kept.symbols.copy()
    # In how many sentences each rule occurs.
    sentences = np.bincount(arrays["own_rule"], minlength=arrays["rule_source"].size)
    arrays["rule_sentences"] = sentences.astype(np.int32)
    arrays["identical"] = _identical_pairs(bitext)
    return ExtractedGrammar(*bitext[:2], arrays, table_limit=table_limit)


def _number_bitext(
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    alignments: Sequence[Alignment],
) -> NumberedBitext:
    counts = len(sources), len(targets), len(alignments)
    if len(set(counts)) > 1:
        raise InputError(f"sources, targets and alignments are of one number, and not {counts}")
    source_words, source_begin, source = _number_words(sources)
    target_words, target_begin, target = _number_words(targets)
    link_begin, links = _join_links(alignments, source_begin, target_begin)
    aligned = Aligned(source_begin, source, target_begin, target, link_begin, links)
    return NumberedBitext(source_words, target_words, aligned)


def _count_rules(
    bitext: NumberedBitext,
    shape: Shape,
    share: bool,
    attached: Attached,
    arrays: MutableMapping[str, NDArray[Any]],
) -> tuple[Int32, Int64]:
    """Write the arrays of `ExtractedGrammar`; return what is attached.

    `share`: whether the rules of a phrase share a count of 1, or have 1 each. What is attached are
    sums over the occurrences of a rule in a sentence, int32 [own rules, c]; and what most sentences
    of a rule have, int64 [rules], where the first occurrence counts for a sentence.

    Raises InputError: a sentence has a rule too often, or there are too many rules.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(8)]
    _give_back()
    sentences = bitext.aligned.source_begin.size - 1
    with ThreadPoolExecutor(1) as pool:
        for first in range(0, max(sentences, 1), _BLOCK):
            last = min(first + _BLOCK, sentences)
            # Kernels let other threads run.
            attachment = pool.submit(attached, first, last)
            found = extraction_kernels.extract(bitext.aligned, first, last, shape, share)
            own, low, rule = found[0], found[1], found[-1]
            if (low < 0).any():
                bad = first + np.searchsorted(np.cumsum(own), (low < 0).argmax(), side="right") + 1
                raise InputError(
                    f"sentence pair {bad} has one rule 32,768 times; it is very long, or all of "
                    "one word: remove it"
                )
            added, one = attachment.result()
            added_up = np.zeros((low.size, added.shape[1]), np.int32)
            np.add.at(added_up, rule, added)
            # Rules are numbered as they come.
            firsts = np.diff(np.maximum.accumulate(rule), prepend=-1) > 0
            arrays_of_block: tuple[np.ndarray, ...] = (*found[:-1], added_up, one[firsts])
            for part, array in zip(parts, arrays_of_block, strict=True):
                part.append(array)

    own_begin = offsets(_joined(parts[0]))
    if own_begin[-1] >= 1 << 31:
        raise InputError("more than 2^31 rules; extract from less text, or shorter phrases")
    order = _sum_rules(arrays, own_begin, parts[1], parts[2:4], parts[4:6])
    added_up, one = _joined(parts[6])[order], _joined(parts[7])[order]
    del order
    pair = arrays["own_rule"].astype(np.int64) << 32 | one
    del one
    pair.sort()
    usual = extraction_kernels.most_frequent(pair, arrays["rule_source"].size)
    arrays["own_begin"] = own_begin
    arrays.update(_count_links(bitext))
    return added_up, usual


def _identical_pairs(bitext: NumberedBitext) -> Int32:
    """Return for each sentence pair the first one of the same words (int32 [sentences])."""
    source_begin, source_ids, target_begin, target_ids, _, _ = bitext.aligned
    source = number_equal(source_begin, source_ids).astype(np.int64)
    pair = source << 32 | number_equal(target_begin, target_ids)
    _, first, same = np.unique(pair, return_index=True, return_inverse=True)
    result: Int32 = first[same].astype(np.int32)
    return result


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Return the parts as one array, and free them."""
    joined = np.concatenate(parts) if parts else np.empty(0, np.int64)
    parts.clear()
    return joined


def _number_words(sentences: Sequence[Sequence[str]]) -> tuple[Vocabulary, Int64, Int32]:
    """Return the vocabulary, its ids in the order of the strings, and the sentences as ids."""
    # So ties between rules do not depend on where in the bitext words come first.
    words = Vocabulary(sorted({word for sentence in sentences for word in sentence}))
    begin = offsets([len(sentence) for sentence in sentences])
    return words, begin, words.lookup([word for sentence in sentences for word in sentence])


def _join_links(
    alignments: Sequence[Alignment], source_begin: Int64, target_begin: Int64
) -> tuple[Int64, Int32]:
    """Return the links of all sentences in one array, none twice, each within its sentences."""
    links = [np.asarray(links, np.int64).reshape(-1, 2) for links in alignments]
    pairs = np.concatenate([np.empty((0, 2), np.int64), *links])
    sentence = np.repeat(np.arange(len(links)), [len(own) for own in links])
    lengths = np.stack([np.diff(source_begin), np.diff(target_begin)], axis=1)
    bad = np.flatnonzero(((pairs < 0) | (pairs >= lengths[sentence])).any(axis=1))
    if bad.size:
        number = sentence[bad[0]] + 1
        raise InputError(f"alignment {number} has a link out of its sentence pair; align this text")
    distinct = np.unique((source_begin[sentence] + pairs[:, 0]) << 32 | pairs[:, 1])
    place = distinct >> 32
    sentence = np.searchsorted(source_begin, place, side="right") - 1
    begin = offsets(np.bincount(sentence, minlength=len(links)))
    pairs = np.stack([place - source_begin[sentence], distinct & 0xFFFFFFFF], axis=1)
    return begin, pairs.astype(np.int32)


def _sum_rules(
    arrays: MutableMapping[str, NDArray[Any]],
    own_begin: Int64,
    low_parts: list[np.ndarray],
    sides: list[list[np.ndarray]],
    target_sides: list[list[np.ndarray]],
) -> Int64:
    """Write the arrays of `ExtractedGrammar` about rules.

    Given are the rules of each sentence, from `own_begin` on: their counts, in units of ``1 /
    UNIT``, and lengths and symbols of their source and of their target sides, all in parts, which
    are freed. Returned is where each stood that is now in order within its sentence.
    """
    # What is done with is let go of: most memory is taken by the sorting.
    _give_back()
    trie, node_source, number, source_begin, source_symbols = _numbered(sides)
    arrays["trie_symbol"], arrays["trie_child_begin"] = trie
    arrays["node_source"] = node_source
    arrays["source_begin"], arrays["source_symbols"] = source_begin, source_symbols
    n_sides = source_begin.size - 1
    del trie, node_source, source_begin, source_symbols
    _give_back()
    _, _, target_number, side_begin, side_symbols = _numbered(target_sides)
    n_target_sides = side_begin.size - 1
    key = number.astype(np.int64) * n_target_sides
    key += target_number
    del number, target_number
    _give_back()
    rule_key, own = sorting_kernels.number(key)
    del key
    low = _joined(low_parts)
    rule_low, rule_count = _sums(own, low, None, rule_key.size)
    # Rules are numbered by source side, count and target side.
    rule_source, rule_target = (part.astype(np.int32) for part in divmod(rule_key, n_target_sides))
    del rule_key
    _give_back()
    per_side = np.bincount(rule_source, minlength=n_sides)
    order = sorting_kernels.largest_first(offsets(per_side), rule_count)
    new_number = np.empty(order.size, np.int32)
    new_number[order] = np.arange(order.size, dtype=np.int32)
    own = new_number[own]
    del new_number
    rule_low, rule_count, rule_target = rule_low[order], rule_count[order], rule_target[order]
    del order
    _give_back()
    arrays["rule_source"] = rule_source
    arrays["target_begin"], arrays["target_symbols"] = gather(side_begin, side_symbols, rule_target)
    del side_begin, side_symbols
    _give_back()
    source_low, source_count = _sums(rule_source, rule_low, rule_count, n_sides)
    target_low, target_count = _sums(rule_target, rule_low, rule_count, n_target_sides)
    totals = source_low, source_count, target_low, target_count
    log_p = np.empty((rule_low.size, 2))
    counts = RuleCounts(offsets(per_side), rule_target, rule_low, rule_count, *totals, log_p)
    extracted_kernels.log_probabilities(rule_source, counts)
    for name, array in counts._asdict().items():
        arrays[f"counts_{name}"] = array
    del counts, array, rule_source, rule_target, rule_low, rule_count, log_p
    del totals, source_low, source_count, target_low, target_count
    _give_back()
    order = sorting_kernels.largest_first(own_begin, -own.astype(np.float64))
    arrays["own_rule"], arrays["own_low"] = own[order], low[order]
    return order


def _give_back() -> None:
    """Give free memory back to the system, which glibc keeps: a quarter of what extraction took."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _numbered(parts: list[list[np.ndarray]]) -> tuple[Trie, Int32, Int32, Int64, Int32]:
    """Return trie and numbers of sides as `ordered_trie`, and their begins and symbols in order."""
    length, symbols = _joined(parts[0]), _joined(parts[1])
    _give_back()
    trie, node_side, number, which = ordered_trie(length, symbols)
    _give_back()
    return trie, node_side, number, *gather(offsets(length), symbols, which)


def _sums(group: Int32, low: Int64, count: np.ndarray | None, n: int) -> tuple[Int64, np.ndarray]:
    """Return the exact (modulo 2^64) and the rounded sums of counts by group."""
    sums_low, sums = np.zeros(n, np.int64), np.zeros(n)
    approximate = np.empty(0) if count is None else count
    extraction_kernels.add_counts(group, low, approximate, sums_low, sums)
    return sums_low, sums


def _count_links(bitext: NumberedBitext) -> dict[str, np.ndarray]:
    """Return the arrays of `ExtractedGrammar` about word links."""
    source_begin, source, target_begin, target, link_begin, links = bitext.aligned
    n_source, n_target = len(bitext.source_words), len(bitext.target_words)
    sentence = np.repeat(np.arange(link_begin.size - 1), np.diff(link_begin))
    source_place = source_begin[sentence] + links[:, 0]
    target_place = target_begin[sentence] + links[:, 1]
    # Words without a link are linked to NULL.
    alone = np.setdiff1d(np.arange(source.size), source_place)
    target_alone = np.setdiff1d(np.arange(target.size), target_place)
    f = np.concatenate([source[source_place], source[alone], np.full(target_alone.size, n_source)])
    e = np.concatenate([target[target_place], np.full(alone.size, n_target), target[target_alone]])
    of = np.concatenate(
        [
            sentence,
            np.searchsorted(source_begin, alone, side="right") - 1,
            np.searchsorted(target_begin, target_alone, side="right") - 1,
        ]
    )
    order = np.argsort(of, kind="stable")
    own_link = np.stack([f, e], axis=1)[order].astype(np.int32)
    own_links = np.bincount(of, minlength=link_begin.size - 1)

    pair, count = np.unique(f.astype(np.int64) << 32 | e, return_counts=True)
    row = np.bincount(pair >> 32, minlength=n_source + 1)
    return {
        "lexicon_begin": offsets(row),
        "lexicon_target": (pair & 0xFFFFFFFF).astype(np.int32),
        "lexicon_links": count.astype(np.int64),
        "lexicon_source_count": np.bincount(f, minlength=n_source + 1).astype(np.int64),
        "lexicon_target_count": np.bincount(e, minlength=n_target + 1).astype(np.int64),
        "own_link_begin": offsets(own_links),
        "own_link": own_link,
    }


_UNITS = {"wbe": WORDS, "phrase": PHRASES, "hier": BLOCKS}


def extract_phrases(
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    alignments: Sequence[Alignment],
    *,
    max_phrase_length: int = 7,
    reordering: str = "hier-mslr-bidirectional-fe",
    table_limit: int = 100,
    arrays: MutableMapping[str, NDArray[Any]] | None = None,
) -> ExtractedPhrases:
    """Extract phrase pairs, with all that is needed to leave out any one sentence again.

    Source: Koehn, Och, Marcu 2003; Koehn et al. 2005 for orientation towards words (``wbe``),
    Galley & Manning 2008 towards blocks (``hier``); between them, towards phrases that are
    extracted (``phrase``). Pairs are consistent with the alignment, have one link at least and at
    most `max_phrase_length` words on either side; words at their edges may be unaligned.

    reordering: as `ReorderingType.parse` takes it, with target sides (``fe``); ``wbe`` where it
        says no unit. Other arguments, and errors, are those of `extract_grammar`.
    """
    check_arguments(EXTRACTED, {"max_phrase_length": max_phrase_length})
    kind = ReorderingType.parse(reordering)
    kind.check_target()
    bitext = _number_bitext(sources, targets, alignments)
    kept = SequenceTable(np.int32, 1024)

    def attached(first: int, last: int) -> tuple[Int32, Int32]:
        """Return orientations and links of each occurrence of a phrase."""
        orientation, begin, point = find_orientations(
            bitext.aligned, first, last, max_phrase_length, _UNITS[kind.unit]
        )
        counted = np.zeros((orientation.shape[0], 8), np.int32)
        for direction in range(2):
            counted[np.arange(len(counted)), 4 * direction + orientation[:, direction]] = 1
        return counted, kept.intern_spans(point, begin[:-1], begin[1:])

    shape = Shape(max_phrase_length, max_phrase_length, 0, True, False)
    arrays = {} if arrays is None else arrays
    own, usual = _count_rules(bitext, shape, False, attached, arrays)
    orientation = np.zeros((arrays["rule_source"].size, 8), np.int32)
    np.add.at(orientation, arrays["own_rule"], own)
    arrays["orientation"] = orientation
    # A sentence has no rule 32,768 times.
    arrays["own_orientation"] = own.astype(np.int16)
    arrays["point_begin"], arrays["point"] = gather(kept.begin, kept.symbols, usual)
    arrays["identical"] = _identical_pairs(bitext)
    return ExtractedPhrases(*bitext[:2], arrays, reordering=kind, table_limit=table_limit)
