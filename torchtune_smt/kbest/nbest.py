"""Lists as lines of an n-best list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from torchtune_smt.kbest.lists import KBest


def nbest_lines(kbest: KBest, texts: Sequence[str], dense: Sequence[str] = ()) -> Iterator[str]:
    """Yield a list, with scores, as lines of an n-best list, with features as cdec has them.

    `texts` stand for the words of the hypotheses. Features that are `dense` come first, and are
    written where they are 0, too.

    Raises ValueError: the list has no names of features, or no scores.
    """
    if kbest.features is None or kbest.score is None:
        raise ValueError("only lists with names of features and scores can be written")
    rows, n, width = kbest.rows, len(kbest), len(dense)
    ids = kbest.features.lookup(list(dense))
    # The column of each feature; behind those that are dense, which the last place stands for, -1.
    column = np.full(ids.max(initial=-1) + 2, -1)
    column[ids[ids >= 0]] = np.flatnonzero(ids >= 0)
    place = column[np.minimum(rows.feature, column.size - 1)]
    row = np.repeat(np.arange(n), np.diff(rows.begin))
    first = np.zeros((n, width))
    first[row[place >= 0], place[place >= 0]] = rows.value[place >= 0]
    others = place < 0
    # Hypotheses of one list have many values in common: each becomes text once. By their bits, as
    # zeros have signs.
    values = np.concatenate([first.ravel(), rows.value[others]]).view(np.int64)
    distinct, which = np.unique(values, return_inverse=True)
    written = np.array([f"{value:.10g}" for value in distinct.view(np.float64).tolist()], object)
    text = written[which].tolist()
    names = kbest.features.names(rows.feature[others].tolist())
    more = [f"{name}={value}" for name, value in zip(names, text[n * width :], strict=True)]
    ends = np.searchsorted(row[others], np.arange(n + 1)).tolist()
    form = " ".join(f"{name.replace('%', '%%')}=%s" for name in dense)
    scores = kbest.score.tolist()
    for h, (begin, end) in enumerate(pairwise(ends)):
        features = [form % tuple(text[h * width : (h + 1) * width])] if dense else []
        said = " ".join(features + more[begin:end])
        yield f"{kbest.index} ||| {texts[h]} ||| {said} ||| {scores[h]:.10g}\n"
