"""Gains and statistics of k-best lists that come without a decoder."""

from __future__ import annotations

from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.metrics.base import Metric, References, check_shape, is_of_bleu, with_gains
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.metrics.variants import BleuPlusOne


def measured(lists: KBestLists, references: References, metric: Metric | None = None) -> KBestLists:
    """Return lists with the gain of each hypothesis, and the statistics of metrics of BLEU.

    Without statistics, `Mert` and `KBestMira` refuse them: they would tune BLEU.

    Parameters
    ----------
    lists : KBestLists
        With words.
    references : sequence of sequences of word lists
        ``references[i]``: those of the sentence whose index is i, each a list of words.
    metric : Metric, optional
        What gains are; BLEU+1 by default.

    Raises
    ------
    ValueError
        The lists have no words, or references are not lists of lists of words.
    InputError
        A sentence has no reference.
    """
    words = lists.words
    if words is None:
        raise ValueError("these lists have no words")
    metric = metric or BleuPlusOne()
    last = int(lists.index.max(initial=-1)) + 1
    # Lists may be of a part of the sentences.
    check_shape(references, last if last <= len(lists) else max(last, len(references)))
    if is_of_bleu(metric):
        lists = BleuReferences(references, words).with_statistics(lists)
    return with_gains(metric.bind(references, words), lists)
