"""The n-grams of a language model as plain lists: what ARPA files hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

import numpy as np

from torchtune_smt.core.arrays import Float32, Int32
from torchtune_smt.core.vocabulary import Vocabulary

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
MAX_ORDER = 6


@dataclass
class Ngrams:
    """N-grams with their log10 probabilities and back-off weights, order by order.

    words: word 0 is ``<unk>``; ``<s>`` and ``</s>`` are among the others.
    rows (list of int32 [count, n], n = 1, 2, ...): word ids. The unigrams are all words in the
        order of their ids.
    prob (list of float32 [count]): log10 of the last word's probability; NaN: what back-off gives.
    backoff (list of float32 [count]): log10 of the back-off weight; 0 throughout for the highest
        order.
    path: the file they come from, for error messages.
    line_of: maps (n, row) to a line of that file.
    """

    words: Vocabulary
    rows: list[Int32]
    prob: list[Float32]
    backoff: list[Float32]
    path: str | PathLike[str] | None = None
    line_of: Callable[[int, int], int] | None = None

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.rows)

    def completed(self) -> Ngrams:
        """Return a copy that also has the prefix and the suffix of each n-gram.

        Those which are added have probability NaN and back-off weight 0 (log10), and stand
        behind the others of their length.
        """
        rows, prob, backoff = list(self.rows), list(self.prob), list(self.backoff)
        for n in range(self.order - 1, 1, -1):
            longer = rows[n]
            needed = np.unique(np.concatenate([longer[:, :-1], longer[:, 1:]]), axis=0)
            new = needed[~np.isin(_as_items(needed), _as_items(rows[n - 1]))]
            rows[n - 1] = np.concatenate([rows[n - 1], new])
            prob[n - 1] = np.append(prob[n - 1], np.full(len(new), np.nan, np.float32))
            backoff[n - 1] = np.append(backoff[n - 1], np.zeros(len(new), np.float32))
        return Ngrams(self.words, rows, prob, backoff, self.path, self.line_of)


def _as_items(rows: Int32) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a view in which each row of ids is one item, so that rows can be compared."""
    rows = np.ascontiguousarray(rows)
    return rows.view([("", rows.dtype)] * rows.shape[1]).ravel()
