"""Estimation of n-gram models: interpolated modified Kneser-Ney.

Chen & Goodman (1998), with the counts of KenLM's lmplz (Heafield et al. 2013): n-grams that
begin with ``<s>`` keep their frequency as adjusted count, nothing is pruned, the unigrams are
interpolated with the uniform distribution, of which ``<unk>`` has one share.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.accepts import integer
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import runs
from torchtune_smt.core.text import is_word
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.lm.ngrams import BEGIN, END, MAX_ORDER, UNKNOWN, Ngrams

# Ids in the estimated model.
_UNKNOWN_WORD, _BEGIN_WORD, _END_WORD = 0, 1, 2

# What lmplz takes with --discount_fallback.
DISCOUNT_FALLBACK = (0.5, 1.0, 1.5)

# Estimated discounts may be 0, which leaves nothing to back-off, and nothing to <unk>. ARPA writes
# log10 0 as -99; being finite, it can be summed, and taken away again.
_LEAST = 1e-99


class _Order(NamedTuple):
    """The different n-grams of one order; indices are into this order or the next lower one."""

    word: Int64
    prefix: Int64
    suffix: Int64
    frequency: Int64
    after_begin: Bool


def estimate(
    sentences: Sequence[Sequence[str]],
    order: int = 5,
    discount_fallback: tuple[float, float, float] | None = None,
    path: str | PathLike[str] | None = None,
) -> Ngrams:
    """Return the interpolated modified Kneser-Ney model of some sentences.

    Raises InputError: words that ARPA cannot hold, or discounts that cannot be estimated.

    sentences: without ``<s>`` and ``</s>``. Empty ones count as ``<s> </s>``.
    order: length of the longest n-grams, 1 to 6.
    discount_fallback: discounts of the counts 1, 2 and 3 or more for those orders whose discounts
        cannot be estimated (small data); `DISCOUNT_FALLBACK` is the usual choice.
    path: where the sentences come from, for error messages; one a line.
    """
    integer(1, MAX_ORDER).check("order", order)
    check_fallback(discount_fallback)
    words, tokens, offset = read_tokens(sentences, path)
    orders = _count(tokens, offset, len(words), order)
    rows: list[Int32] = []
    log_prob: list[Float64] = []
    log_backoff: list[Float64] = []
    # Below the unigrams lies the uniform distribution over all words but <s>.
    lower: Float64 = np.full(1, 1.0 / (len(words) - 1))
    for n, now in enumerate(orders, start=1):
        adjusted = _adjusted_counts(orders, n)
        discounts = _discounts(adjusted, n, discount_fallback, path)
        taken = discounts[np.minimum(adjusted, 3)]
        contexts = lower.size
        total = np.bincount(now.prefix, adjusted, contexts)
        freed = np.bincount(now.prefix, taken, contexts)
        # Contexts that nothing follows leave all to the lower order.
        backoff: Float64 = np.ones(contexts)
        backoff[total > 0] = freed[total > 0] / total[total > 0]
        share = (adjusted - taken) / total[now.prefix]
        lower = share + backoff[now.prefix] * lower[now.suffix]
        if n == 1:
            # Never predicted; log10 0 stands in its place.
            lower[_BEGIN_WORD] = 1.0
        else:
            log_backoff.append(_log10(backoff))
        log_prob.append(_log10(lower))
        own = now.word.astype(np.int32)[:, None]
        rows.append(own if n == 1 else np.concatenate([rows[-1][now.prefix], own], axis=1))
    log_backoff.append(np.zeros(orders[-1].word.size))
    prob, backoffs = ([v.astype(np.float32) for v in some] for some in (log_prob, log_backoff))
    return Ngrams(words, rows, prob, backoffs, path)


def check_fallback(discounts: Sequence[float] | None) -> None:
    """Raise ValueError unless they are discounts of the counts 1, 2 and 3 or more, or None."""
    if discounts is not None and len(discounts) != 3:
        raise ValueError(f"discount_fallback must be 3 numbers, not {discounts}")
    for count, discount in enumerate(discounts or (), start=1):
        if not 0 < discount <= count:
            raise ValueError(f"discount_fallback[{count - 1}] must be in (0, {count}]")


def _log10(values: Float64) -> Float64:
    result: Float64 = np.log10(np.maximum(values, _LEAST))
    return result


def read_tokens(
    sentences: Sequence[Sequence[str]], path: str | PathLike[str] | None = None
) -> tuple[Vocabulary, Int64, Int64]:
    """Check sentences; return words, ids with ``<s>`` and ``</s>``, and places in sentences."""
    words = Vocabulary([UNKNOWN, BEGIN, END])
    length: Int64 = np.array([len(sentence) for sentence in sentences], np.int64) + 2
    end = np.cumsum(length)
    offset = np.arange(end[-1]) - np.repeat(end - length, length)
    inside: Bool = np.ones(end[-1], np.bool_)
    inside[end - 1] = inside[end - length] = False
    tokens: Int64 = np.full(end[-1], _END_WORD, np.int64)
    tokens[end - length] = _BEGIN_WORD
    ids = words.intern([word for sentence in sentences for word in sentence])
    tokens[inside] = ids
    names = words.names(range(_END_WORD + 1, len(words)))
    unusable = [True] * (_END_WORD + 1)
    # ARPA files are read with either spelling of the unknown word.
    unusable += [not is_word(name) or name == UNKNOWN.upper() for name in names]
    bad = np.flatnonzero(np.array(unusable)[ids])
    if bad.size:
        position = np.flatnonzero(inside)[bad[0]]
        raise InputError(
            f"'{words[int(ids[bad[0]])]}' cannot be a word of a language model: take out the"
            f" special words {UNKNOWN}, {UNKNOWN.upper()}, {BEGIN}, {END}, empty words and those"
            " with blanks",
            path=path,
            line=int(np.searchsorted(end, position, side="right")) + 1,
        )
    return words, tokens, offset


def _count(tokens: Int64, offset: Int64, n_words: int, order: int) -> list[_Order]:
    """Return the different n-grams of each order, with their frequencies."""
    frequency = np.bincount(tokens, minlength=n_words)
    root = np.zeros(n_words, np.int64)
    is_begin = np.arange(n_words) == _BEGIN_WORD
    orders = [_Order(np.arange(n_words), root, root, frequency, is_begin)]
    # The n-gram that ends at each token.
    ending = tokens
    for n in range(2, order + 1):
        at = np.flatnonzero(offset >= n - 1)
        keys = ending[at - 1] * n_words + tokens[at]
        sort = np.argsort(keys)
        distinct, begin = runs(keys[sort])
        prefix, word = np.divmod(distinct, n_words)
        frequency = np.diff(begin)
        orders.append(
            _Order(
                word=word,
                prefix=prefix,
                suffix=ending[at[sort[begin[:-1]]]],
                frequency=frequency,
                after_begin=orders[-1].after_begin[prefix],
            )
        )
        longer: Int64 = np.full(tokens.size, -1, np.int64)
        longer[at[sort]] = np.repeat(np.arange(distinct.size), frequency)
        ending = longer
    return orders


def _adjusted_counts(orders: list[_Order], n: int) -> Int64:
    """Return the adjusted counts of order n: how many different words stand to the left."""
    now = orders[n - 1]
    counts = now.frequency.copy()
    if n < len(orders):
        kinds = np.bincount(orders[n].suffix, minlength=counts.size)
        counts[~now.after_begin] = kinds[~now.after_begin]
    if n == 1:
        counts[_BEGIN_WORD] = 0
    return counts


def _discounts(
    adjusted: Int64,
    n: int,
    fallback: tuple[float, float, float] | None,
    path: str | PathLike[str] | None,
) -> Float64:
    """Return the discounts of adjusted counts 0, 1, 2 and 3 or more (Chen & Goodman, Eq. 26)."""
    kinds = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(np.float64)
    if kinds[1:4].all():
        y = kinds[1] / (kinds[1] + 2 * kinds[2])
        k = np.arange(1, 4)
        discounts: Float64 = np.zeros(4)
        discounts[1:] = k - (k + 1) * y * kinds[2:5] / kinds[1:4]
        if ((discounts[1:] >= 0) & (discounts[1:] <= k)).all():
            return discounts
    if fallback is None:
        raise InputError(
            f"the discounts of {n}-grams cannot be estimated from so little or so regular text; "
            f"give discount_fallback, e.g. {DISCOUNT_FALLBACK}, or a lower order",
            path=path,
        )
    return np.array([0.0, *fallback])
