"""Extraction of a phrase table with reordering scores from an aligned bitext."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Int32
from torchtune_smt.core.offsets import gather
from torchtune_smt.core.sequences import SequenceTable
from torchtune_smt.grammar.alignment_files import Alignment
from torchtune_smt.grammar.extracted_phrases import ExtractedPhrases
from torchtune_smt.grammar.extraction import (
    NumberedBitext,
    count_rules,
    identical_pairs,
    most_frequent,
    number_bitext,
)
from torchtune_smt.grammar.orientation_kernels import BLOCKS, PHRASES, WORDS, find_orientations
from torchtune_smt.grammar.reordering import ReorderingType

_UNITS = {"wbe": WORDS, "phrase": PHRASES, "hier": BLOCKS}


def extract_phrases(
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    alignments: Sequence[Alignment],
    *,
    max_phrase_length: int = 7,
    reordering: str = "hier-mslr-bidirectional-fe",
    table_limit: int = 100,
) -> ExtractedPhrases:
    """Extract phrase pairs, with all that is needed to leave out any one sentence again.

    Source: Koehn, Och, Marcu 2003; Koehn et al. 2005 for orientation towards words (``wbe``),
    Galley & Manning 2008 towards blocks (``hier``); between them, towards phrases that are
    extracted (``phrase``). Pairs are consistent with the alignment, have one link at least and at
    most `max_phrase_length` words on either side; words at their edges may be unaligned.

    Parameters
    ----------
    sources, targets, alignments
        As `extract_grammar` takes them.
    reordering : str
        As `ReorderingType.parse` takes it, with target sides (``fe``); ``wbe`` where it says no
        unit.
    table_limit : int
        Of the result: see `ExtractedGrammar`.

    Raises
    ------
    InputError
        Numbers of sentences differ, or a link leads out of its sentences.
    ValueError
        An argument is out of its range.
    """
    if not 1 <= max_phrase_length <= 100:
        raise ValueError(f"max_phrase_length must be in 1..100, not {max_phrase_length}")
    kind = ReorderingType.parse(reordering)
    kind.check_target()
    bitext = number_bitext(sources, targets, alignments)
    attached = _Attached(bitext, max_phrase_length, _UNITS[kind.unit])
    arrays = count_rules(
        bitext,
        max_phrase_length=max_phrase_length,
        max_symbols=max_phrase_length,
        max_gaps=0,
        unaligned_edges=True,
        share=False,
        attached=attached,
    )
    own = arrays.pop("own_sum")
    rules = arrays["rule_source"].size
    orientation = np.zeros((rules, 8), np.int32)
    np.add.at(orientation, arrays["own_rule"], own)
    arrays["orientation"] = orientation
    # A sentence has no rule 32,768 times.
    arrays["own_orientation"] = own.astype(np.int16)
    usual = most_frequent(arrays["own_rule"], arrays.pop("own_first"), rules)
    table = attached.alignments
    arrays["point_begin"], arrays["point"] = gather(table.begin, table.symbols, usual)
    arrays["identical"] = identical_pairs(bitext)
    return ExtractedPhrases(
        bitext.source_words,
        bitext.target_words,
        arrays,
        reordering=kind,
        table_limit=table_limit,
    )


class _Attached:
    """Orientations and links of each occurrence of a phrase; see `count_rules`."""

    def __init__(self, bitext: NumberedBitext, max_length: int, unit: int) -> None:
        self.alignments = SequenceTable(np.int32, 1024)
        self._bitext = bitext
        self._max_length = max_length
        self._unit = unit

    def __call__(self, first: int, last: int) -> tuple[Int32, Int32]:
        orientation, begin, point = find_orientations(
            self._bitext.source_begin,
            self._bitext.target_begin,
            self._bitext.link_begin,
            self._bitext.links,
            first,
            last,
            self._max_length,
            self._unit,
        )
        counted = np.zeros((orientation.shape[0], 8), np.int32)
        for direction in range(2):
            counted[np.arange(len(counted)), 4 * direction + orientation[:, direction]] = 1
        return counted, self.alignments.intern_spans(point, begin[:-1], begin[1:])
