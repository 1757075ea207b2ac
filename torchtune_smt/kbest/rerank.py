"""k-best lists in the order that weights give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.text import split_fields
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.formats import layout_of, read_text_of_lists, stream_lists
from torchtune_smt.kbest.forms import BARS, detected, read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.stored_lists import StoredLists
from torchtune_smt.kbest.writers import WRITERS, bar_lines


def reranked(lists: KBestLists, weights: Snapshot, k: int | None = None) -> KBestLists:
    """Return lists best first, with their new scores; equal ones stay in their order.

    Raises ValueError: `k` is below 1, or a list is empty.

    weights: only those of features in the lists are read.
    k: hypotheses of a list that are kept at most; by default all.
    """
    ids: Int64 = np.unique(lists.rows.feature).astype(np.int64)
    known: Float64 = np.zeros(int(ids[-1]) + 1 if ids.size else 0)
    known[ids] = weights.read(lists.features, ids)
    return best_first(lists, lists.rows.dot(known), k)


def best_first(lists: KBestLists, score: Float64, k: int | None = None) -> KBestLists:
    """Return lists in the order of new scores, which they get; equal ones stay in their order.

    Raises ValueError: `k` is below 1, or a list is empty.

    score (float64 [hypotheses])
    k: hypotheses of a list that are kept at most; by default all.
    """
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if (np.diff(lists.begin) < 1).any():
        raise ValueError("a list is empty")
    spans = zip(lists.begin[:-1].tolist(), lists.begin[1:].tolist(), strict=True)
    order = [first + np.argsort(-score[first:last], kind="stable")[:k] for first, last in spans]
    numbers = np.concatenate([np.empty(0, np.int64), *order])
    return replace(lists, score=score).chosen(numbers)


class Block(NamedTuple):
    """Some lists of a file.

    lines: of a form with fields between ``|||``: the lines from `first` on.
    first: from 1.
    """

    stored: StoredLists
    form: str
    lines: Sequence[bytearray] = ()
    first: int = 1

    def text(self, entry: int) -> str:
        """Return the words of a hypothesis as the file has them."""
        if self.form not in BARS:
            return re.sub(r"[\r\n]+", " ", self.stored.texts[entry - 1])
        return split_fields(self.lines[entry - self.first].decode("utf-8"))[1].strip(" \t")


def blocks(path: Path, form: str | None, **options: Any) -> Iterator[Block]:
    """Yield the lists of a file: some at a time where it can be read so, and else all.

    Raises InputError: as `read_lists`.

    options: those of `read_lists`.
    """
    name = form or detected(path)
    if name not in BARS:
        yield Block(read_lists(path, name, texts=True, **options), name)
        return
    features, ids = Vocabulary(), Vocabulary()
    dense, missing = options["dense"], options["missing"]
    held = any(options[what] for what in ("columns", "scale", "score"))
    if held or options["on_error"] != "error" or not (missing in (None, 0) or dense is not None):
        text = read_text_of_lists(path)
        lines = text.split(b"\n")
        yield Block(read_lists(path, name, text=text, **options), name, lines)
        return
    first = 1
    for stored, lines in stream_lists(
        path, BARS[name], features=features, ids=ids, dense=dense, missing=missing
    ):
        yield Block(stored, name, lines, first)
        first += len(lines)


def best_lines(block: Block, lists: KBestLists, first: int = 0) -> Iterator[str]:
    """Yield the first hypothesis of each sentence, a line; empty for one without a list.

    Behind the name of the sentence, where it has one, as in Kaldi's files.

    lists: those of the block, best first; ``index`` ascends.
    first: the number of the first sentence of the block.
    """
    best = dict(zip(lists.index.tolist(), lists.entries()[lists.begin[:-1]].tolist(), strict=True))
    for number in range(first, block.stored.n_sentences):
        text = block.text(best[number]) if number in best else ""
        yield (text if lists.ids is None else f"{lists.ids[number]} {text}") + "\n"


def list_lines(block: Block, lists: KBestLists, path: Path) -> Iterator[str]:
    """Yield the lines of lists with scores in the form of their file, `path`."""
    if block.form not in BARS:
        yield from WRITERS[block.form](path, lists)
    elif block.lines:
        total = layout_of(bytearray(b"\n".join(block.lines[:1000])), BARS[block.form]).total
        yield from bar_lines(lists, block.lines, block.first, total)
