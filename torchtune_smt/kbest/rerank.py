"""k-best lists in the order that weights give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.text import split_fields
from torchtune_smt.kbest.lists import KBestLists


def reranked(lists: KBestLists, weights: Snapshot, k: int | None = None) -> KBestLists:
    """Return lists best first, with their new scores; equal ones stay in their order.

    Raises ValueError: `k` is below 1, or a list is empty.

    Parameters
    ----------
    weights : Snapshot
        Only those of features in the lists are read.
    k : int, optional
        Hypotheses of a list that are kept at most; by default all.
    """
    ids: Int64 = np.unique(lists.rows.feature).astype(np.int64)
    known: Float64 = np.zeros(int(ids[-1]) + 1 if ids.size else 0)
    known[ids] = weights.read(lists.features, ids)
    return best_first(lists, lists.rows.dot(known), k)


def best_first(lists: KBestLists, score: Float64, k: int | None = None) -> KBestLists:
    """Return lists in the order of new scores, which they get; equal ones stay in their order.

    Raises ValueError: `k` is below 1, or a list is empty.

    Parameters
    ----------
    score : float64 [hypotheses]
    k : int, optional
        Hypotheses of a list that are kept at most; by default all.
    """
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if (np.diff(lists.begin) < 1).any():
        raise ValueError("a list is empty")
    spans = zip(lists.begin[:-1].tolist(), lists.begin[1:].tolist(), strict=True)
    order = [first + np.argsort(-score[first:last], kind="stable")[:k] for first, last in spans]
    numbers = np.concatenate([np.empty(0, np.int64), *order])
    return replace(lists, score=score).chosen(numbers)


def best_lines(lists: KBestLists, n_sentences: int) -> Iterator[str]:
    """Yield the first hypothesis of each sentence, a line; empty for one without a list.

    Parameters
    ----------
    lists : KBestLists
        ``index`` ascends: the numbers of the sentences, from 0.
    n_sentences : int
        How many there are.
    """
    written = 0
    for kbest in lists:
        yield "\n" * (kbest.index - written)
        yield kbest.text(0) + "\n"
        written = kbest.index + 1
    yield "\n" * (n_sentences - written)


def file_lines(lists: KBestLists, text: Sequence[bytearray]) -> Iterator[str]:
    """Yield the lines of a file in the order of the lists, with their scores in the fourth field.

    Parameters
    ----------
    lists : KBestLists
        With scores; the entry of a hypothesis is its line, from 1.
    text : sequence of bytearray
        The lines of the file.
    """
    scores = [] if lists.score is None else lists.score.tolist()
    for line, score in zip(lists.entries().tolist(), scores, strict=True):
        fields = split_fields(text[line - 1].decode("utf-8"))
        fields[3] = f" {score:.10g} " if len(fields) > 4 else f" {score:.10g}"
        yield "|||".join(fields) + "\n"
