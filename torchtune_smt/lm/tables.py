"""Flat tables of an n-gram model, as compiled code queries them, and their copy on disk."""

from __future__ import annotations

from os import PathLike
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.archive import ALIGNMENT, Archive, Stored
from torchtune_smt.core.arrays import Float32, Records
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.lm import kernels
from torchtune_smt.lm.ngrams import BEGIN, END, MAX_ORDER, UNKNOWN, Ngrams

# An entry of the hash table: a transition from a context to an n-gram of two words or more.
#
# key   ``(node << 32 | word) + 1``; 0 where the place is empty
# val   the n-gram's node
# state its state, as below: whoever only goes on need not wait for the node itself
ENTRY = np.dtype([("key", "i8"), ("val", "i4"), ("state", "i4")])

# A node of 32 bytes: what a query reads of it lies in one line of the processor's cache.
#
# backoff_sum     log10 of the back-off weights of the node and of all its suffixes, summed
# prob            log10 of the last word's probability after the others; 0 for node 0
# suffix, prefix  the node without its first, without its last word
# word            last word; -1 for node 0
# state           the longest suffix (the node itself included, up to order - 1 words) that has a
#                 back-off weight other than 0, or is the context of a longer n-gram, or ends a
#                 longer n-gram which has or is; otherwise 0
# length          number of words
# extends_left    whether some longer n-gram ends in this one: if not, words to its left cannot
#                 change the probability of its last word but through back-off weights
NODE = np.dtype(
    [
        ("backoff_sum", "f8"),
        ("prob", "f4"),
        ("suffix", "i4"),
        ("prefix", "i4"),
        ("word", "i4"),
        ("state", "i4"),
        ("length", "i1"),
        ("extends_left", "?"),
        ("pad", "i2"),
    ]
)


class LmTables(NamedTuple):
    """An n-gram model: its n-grams are nodes, a hash table leads from one to the next.

    Node 0 is the empty n-gram, nodes 1..V are the words (word id + 1), longer n-grams follow, the
    shorter ones first. Every n-gram's prefix and suffix are nodes, too. A node also stands for
    the state after it: its `state` is the shortest one that scores all continuations alike.

    Kernels take the two arrays as two arguments (see `torchtune_smt.lm.kernels`).

    table (ENTRY [2^b]): at least half of the places are empty.
    nodes (NODE [N])
    """

    table: Records
    nodes: Records


def build_tables(ngrams: Ngrams) -> LmTables:
    """Return the tables of a list of n-grams.

    N-grams that the list lacks although longer ones begin or end in them (pruned models) are
    added with the probability that back-off gives them and a back-off weight of 1, so that no
    sentence's score changes. (KenLM does so for those that longer ones end in, and refuses a
    model that lacks one which longer ones begin with.)

    Raises InputError: an n-gram stands in the list twice.
    """
    tables, backoff, failed = _link(ngrams)
    if failed is not None and failed[2] == kernels.MISSING:
        ngrams = ngrams.completed()
        # Behind what was missing, an n-gram may stand twice.
        tables, backoff, failed = _link(ngrams)
    if failed is not None:
        order, row, _ = failed
        ngram = " ".join(ngrams.words.names(ngrams.rows[order - 1][row]))
        line = None if ngrams.line_of is None else ngrams.line_of(order, row)
        raise InputError(f"the n-gram '{ngram}' stands twice", path=ngrams.path, line=line)
    kernels.finish_nodes(*tables, backoff, ngrams.order)
    return tables


def check_tables(tables: LmTables, order: int, words: Vocabulary) -> None:
    """Raise ValueError unless kernels can work on tables that were read from a file.

    What they say is not looked at: one pass finds whatever could lead out of the tables, or
    nowhere.
    """
    table, nodes = tables
    fits = (
        type(order) is int
        and 1 <= order <= MAX_ORDER
        and (table.dtype, nodes.dtype) == (ENTRY, NODE)
        and table.ndim == nodes.ndim == 1
        and len(words) < nodes.size < 2**31
        and table.size & (table.size - 1) == 0 < table.size
        and words.lookup([UNKNOWN])[0] == 0
        and (words.lookup([BEGIN, END]) > 0).all()
        and kernels.leads_nowhere_else(table, nodes, len(words), order)
    )
    if not fits:
        raise ValueError("the tables are no language model")


def _link(ngrams: Ngrams) -> tuple[LmTables, Float32, tuple[int, int, int] | None]:
    """Return linked tables, the nodes' own back-off weights, and who could not be placed."""
    counts = [rows.shape[0] for rows in ngrams.rows]
    size = 1 + sum(counts)
    if size >= 2**31 - 1:
        raise InputError("the model has more than 2^31 n-grams; prune it", path=ngrams.path)
    slots = 16
    while slots < 2 * (size - 1 - counts[0]):
        slots *= 2
    table, nodes = _aligned_zeros(slots, ENTRY), _aligned_zeros(size, NODE)
    nodes["word"][0] = -1
    backoff: Float32 = np.zeros(size, np.float32)
    first = 1
    for order, rows in enumerate(ngrams.rows, start=1):
        last = first + rows.shape[0]
        nodes["prob"][first:last] = ngrams.prob[order - 1]
        backoff[first:last] = ngrams.backoff[order - 1]
        nodes["length"][first:last] = order
        row, code = kernels.link_order(table, nodes, rows, first)
        if code != kernels.PLACED:
            return LmTables(table, nodes), backoff, (order, row, code)
        first = last
    return LmTables(table, nodes), backoff, None


def _aligned_zeros(size: int, dtype: np.dtype[np.void]) -> Records:
    """Return an array of zeros whose records do not straddle cache lines."""
    room = np.zeros(size * dtype.itemsize + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size * dtype.itemsize].view(dtype)


# To be raised whenever the tables' arrays or records, their meaning or the hash function change.
ARCHIVE: Final = Archive("copy of a language model", 3, "it is built again")
_WORDS: Final = "words."


def write_cache(
    source: str | PathLike[str], checksum: str, order: int, words: Vocabulary, tables: LmTables
) -> None:
    """Write the binary copy of a model; `checksum`: of the bytes that it was made from."""
    arrays = words.to_arrays(_WORDS) | tables._asdict()
    ARCHIVE.write_copy(source, {"source": checksum}, {"order": order}, arrays)


def read_cache(
    source: str | PathLike[str], checksum: str
) -> tuple[int, Vocabulary, LmTables] | None:
    """Return (order, words, tables) of the binary copy, None where there is none of use."""

    def made(copy: Stored) -> tuple[int, Vocabulary, LmTables]:
        order = copy.content["order"]
        tables = LmTables(**{name: copy.arrays[name] for name in LmTables._fields})
        words = Vocabulary.from_arrays(copy.arrays, _WORDS)
        if not copy.trusted:
            check_tables(tables, order, words)
        return order, words, tables

    return ARCHIVE.read_copy(source, {"source": checksum}, made)
