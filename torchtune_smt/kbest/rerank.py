"""k-best lists in the order that weights give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.core.text import split_fields
from torchtune_smt.core.textio import read_text
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.formats import TUNING_FILES, layout_of, stream_lists
from torchtune_smt.kbest.formats_kernels import TOTAL
from torchtune_smt.kbest.forms import BARS, detected, read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.stored_lists import StoredLists, names_in, some
from torchtune_smt.kbest.tools import FORMS


def reranked(lists: KBestLists, weights: Snapshot, k: int | None = None) -> KBestLists:
    """Return lists best first under weights, with their new scores; see `best_first`."""
    ids, numbered = lists.rows.numbered()
    return best_first(lists, numbered.dot(weights.read(lists.features, ids)), k)


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
    """Yield what `read_lists` returns with such options: some lists at a time where that can be."""
    name = form or detected(path)
    if name not in BARS:
        yield Block(read_lists(path, name, texts=True, **options), name)
        return
    features, ids = Vocabulary(), Vocabulary()
    dense, missing = options["dense"], options["missing"]
    held = any(options[what] for what in ("columns", "scale", "score"))
    if held or options["on_error"] != "error" or not (missing in (None, 0) or dense is not None):
        text = read_text(path, refused=TUNING_FILES)
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
    """Yield the best hypothesis of each sentence from `first` on, behind its name if it has one."""
    best = dict(zip(lists.index.tolist(), lists.entries()[lists.begin[:-1]].tolist(), strict=True))
    for number in range(first, block.stored.n_sentences):
        text = block.text(best[number]) if number in best else ""
        yield (text if lists.ids is None else f"{lists.ids[number]} {text}") + "\n"


def list_lines(block: Block, lists: KBestLists, path: Path) -> Iterator[str]:
    """Yield the lines of lists with scores in the form of their file, `path`."""
    if block.form not in BARS:
        write = FORMS[block.form].write
        assert write is not None
        yield from write(path, lists)
        return
    assert lists.score is not None
    layout = layout_of(bytearray(b"\n".join(block.lines[:1000])), BARS[block.form])
    total = layout.roles.index(TOTAL)
    for line, score in zip(lists.entries().tolist(), lists.score.tolist(), strict=True):
        fields = split_fields(block.lines[line - block.first].decode("utf-8"))
        fields[total] = f" {score:.10g} " if len(fields) > total + 1 else f" {score:.10g}"
        yield "|||".join(fields) + "\n"


def reranked_blocks(
    weights_path: str,
    weights: FrozenWeights,
    k: int,
    by_risk: Callable[[KBestLists, int], KBestLists] | None,
    say: Callable[[str], None],
    added: Callable[[StoredLists], KBestLists] | None,
    given: Collection[str],
    path: Path,
    form: str,
    **options: Any,
) -> Iterator[tuple[Block, KBestLists]]:
    """Yield the `blocks` of a file as they were read, and in the order that weights give them.

    Raises InputError: the file is bad, or has no feature with a weight.

    k: hypotheses of a list that are kept at most.
    by_risk: returns lists in an order of another kind, of at most so many hypotheses.
    say: told which features with a weight the lists lack.
    added: returns lists with more features, if the weights have some.
    given: those of them that new lists need not have.
    """
    names, values = weights.features.names(range(len(weights))), weights.values
    active, not_needed = weights.features.names(np.flatnonzero(values)), set(given)
    needed = [name for name in active if name not in not_needed]
    if not values.any():
        say(f"{weights_path}: all weights are 0, which leaves lists as they are")
    # Nothing is written before a weight has been found.
    waiting: list[tuple[Block, KBestLists]] = []
    features, lacking, size = Vocabulary(), needed, -1
    for block in blocks(path, form, **options):
        block.stored.check_features(path)
        if block.stored.skipped:
            say(f"{path}: {block.stored.summary()}")
        lists = block.stored.lists if added is None else added(block.stored)
        assert lists.features is not None
        features = lists.features
        if len(features) != size:
            # Which of the names that a feature may have is the lists' may change with new ones.
            size = len(features)
            weights = FrozenWeights(Vocabulary(names_in(features, names)), values)
            there = features.lookup(names_in(features, needed)) >= 0
            lacking = [name for name, found in zip(needed, there, strict=True) if not found]
        best = reranked(lists, weights, k if by_risk is None else None)
        waiting.append((block, best if by_risk is None else by_risk(best, k)))
        if not needed or len(lacking) < len(needed):
            yield from waiting
            waiting = []
    if waiting:
        own = some(features.names(range(size)))
        raise InputError(
            f"has no weight for any feature of {path}: it has {some(lacking)}, and the lists have "
            f"{own}; was it made for other lists?",
            path=weights_path,
        )
    if lacking:
        say(
            f"{weights_path}: {len(lacking):,} of {len(needed):,} features with a weight are "
            f"nowhere in {path}: {some(lacking)}"
        )
