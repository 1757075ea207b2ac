"""Gains and statistics of k-best lists that come without a decoder."""

from __future__ import annotations

from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.metrics.base import Metric, References, with_gains
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.metrics.variants import BleuPlusOne


def measured(lists: KBestLists, references: References, metric: Metric | None = None) -> KBestLists:
    """Return lists with the gain of each hypothesis, and BLEU's statistics.

    Parameters
    ----------
    lists : KBestLists
        With words.
    references : sequence of sequences of word lists
        ``references[i]``: those of the sentence whose index is i.
    metric : Metric, optional
        What gains are; BLEU+1 by default.

    Raises
    ------
    ValueError
        The lists have no words.
    InputError
        A sentence has no reference.
    """
    words = lists.words
    if words is None:
        raise ValueError("these lists have no words")
    lists = BleuReferences(references, words).with_statistics(lists)
    return with_gains((metric or BleuPlusOne()).bind(references, words), lists)
