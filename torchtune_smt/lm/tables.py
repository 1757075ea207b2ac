"""Flat tables of an n-gram model, as compiled code queries them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.kernel_types import Flags, Floats, Ids, Lengths, Offsets, Reals
from torchtune_smt.lm import kernels
from torchtune_smt.lm.ngrams import Ngrams


class LmTables(NamedTuple):
    """An n-gram model: its n-grams are nodes, a hash table leads from one to the next.

    Node 0 is the empty n-gram, nodes 1..V are the words (word id + 1), longer n-grams follow, the
    shorter ones first. Every n-gram's prefix and suffix are nodes, too. A node also stands for
    the state after it: `state` maps it to the shortest one that scores all continuations alike.

    Attributes
    ----------
    key : int64 [2^b]
        ``(node << 32 | word) + 1`` of a transition from a context to an n-gram of two words or
        more; 0 where the place is empty. At least half of the places are.
    val : int32 [2^b]
        The n-gram's node.
    prob : float32 [N]
        log10 of the last word's probability after the others; 0 for node 0.
    backoff_sum : float64 [N]
        log10 of the back-off weights of the node and of all its suffixes, summed.
    prob_sum : float64 [N]
        `prob` of the node and of all its prefixes, summed: log10 of the n-gram's probability.
        ``<s>`` counts 0 in it, whatever the file says: it is never generated.
    length : int8 [N]
    suffix, prefix : int32 [N]
        The node without its first, without its last word.
    word : int32 [N]
        Last word; -1 for node 0.
    state : int32 [N]
        The longest suffix (the node itself included, up to order - 1 words) that has a back-off
        weight other than 0, or is the context of a longer n-gram, or ends a longer n-gram which
        has or is; otherwise 0.
    extends_left : bool [N]
        Whether some longer n-gram ends in this one: if not, words to its left cannot change the
        probability of its last word but through back-off weights.
    """

    key: Offsets
    val: Ids
    prob: Floats
    backoff_sum: Reals
    prob_sum: Reals
    length: Lengths
    suffix: Ids
    prefix: Ids
    word: Ids
    state: Ids
    extends_left: Flags


def build_tables(ngrams: Ngrams) -> LmTables:
    """Return the tables of a list of n-grams.

    N-grams that the list lacks although longer ones begin or end in them (pruned models) are
    added with the probability that back-off gives them and a back-off weight of 1, so that no
    sentence's score changes. (KenLM does so for those that longer ones end in, and refuses a
    model that lacks one which longer ones begin with.)

    Raises
    ------
    InputError
        An n-gram stands in the list twice, or there are more than 2^31 of them.
    """
    tables, backoff, failed = _link(ngrams)
    if failed is not None:
        order, row, code = failed
        if code == kernels.DUPLICATE:
            raise ngrams.error(f"the n-gram '{ngrams.text(order, row)}' stands twice", order, row)
        ngrams = ngrams.completed()
        tables, backoff, _ = _link(ngrams)
    begin_word = ngrams.words.lookup(["<s>"])[0]
    kernels.finish_nodes(tables, backoff, ngrams.order, begin_word + 1)
    return tables


def _link(ngrams: Ngrams) -> tuple[LmTables, Floats, tuple[int, int, int] | None]:
    """Fill the hash table and the links between nodes.

    Returns the tables, the nodes' own back-off weights, and (order, row, code) of the first
    n-gram that could not be placed.
    """
    counts = [rows.shape[0] for rows in ngrams.rows]
    size = 1 + sum(counts)
    if size >= 2**31 - 1:
        raise ngrams.error("the model has more than 2^31 n-grams; prune it")
    slots = 16
    while slots < 2 * (size - 1 - counts[0]):
        slots *= 2
    tables = LmTables(
        key=np.zeros(slots, np.int64),
        val=np.zeros(slots, np.int32),
        prob=np.zeros(size, np.float32),
        backoff_sum=np.zeros(size, np.float64),
        prob_sum=np.zeros(size, np.float64),
        length=np.zeros(size, np.int8),
        suffix=np.zeros(size, np.int32),
        prefix=np.zeros(size, np.int32),
        word=np.full(size, -1, np.int32),
        state=np.zeros(size, np.int32),
        extends_left=np.zeros(size, np.bool_),
    )
    backoff: Floats = np.zeros(size, np.float32)
    first = 1
    for order, rows in enumerate(ngrams.rows, start=1):
        last = first + rows.shape[0]
        tables.prob[first:last] = ngrams.prob[order - 1]
        backoff[first:last] = ngrams.backoff[order - 1]
        tables.length[first:last] = order
        row, code = kernels.link_order(tables, rows, first)
        if code != kernels.PLACED:
            return tables, backoff, (order, row, code)
        first = last
    return tables, backoff, None
