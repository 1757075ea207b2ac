"""What lists were sorted by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64


def sorted_by(begin: Int64, features: Float64, score: Float64) -> tuple[Float64, float]:
    """Return the weights whose sums of features are nearest to scores, by least squares.

    Only differences within a list count: what is added to a whole list, a normaliser or the score
    of the source, has no effect on its order.

    begin (int64 [S + 1]): hypotheses of list s are ``begin[s] .. begin[s + 1] - 1``; no list is
        empty.
    features (float64 [d, n])
    score (float64 [n])

    Returns weights (float64 [d]): the smallest ones, where several are as near.
    Returns share: of the variance of the scores within the lists, what they explain: 1 for all of
        it.
    """
    table = np.vstack([features, score])
    lengths = np.diff(begin)
    table = table - np.repeat(np.add.reduceat(table, begin[:-1], axis=1) / lengths, lengths, axis=1)
    scale = np.sqrt((table**2).mean(axis=1))
    rows = (table / np.where(scale > 0, scale, 1)[:, None]).T
    found, *_ = np.linalg.lstsq(rows[:, :-1], rows[:, -1])
    left = ((rows[:, -1] - rows[:, :-1] @ found) ** 2).mean()
    factor = np.where(scale[:-1] > 0, scale[-1] / np.where(scale[:-1] > 0, scale[:-1], 1), 0)
    weights: Float64 = np.asarray(found * factor, np.float64)
    return weights, float(1 - left) if scale[-1] > 0 else 0.0


def combination(names: Sequence[str], weights: Float64) -> str:
    """Return weights as a sum for people: 0.7 decoder + 0.3 ctc - 0.1 length."""
    parts = []
    for name, weight in zip(names, weights.tolist(), strict=True):
        shown = f"{abs(weight):.4g}"
        if float(shown) and abs(weight) > 1e-6 * float(np.abs(weights).max()):
            parts += ["-" if weight < 0 else "+", f"{shown} {name}"]
    if not parts:
        return "0"
    return " ".join(parts[1:] if parts[0] == "+" else [parts[0] + parts[1], *parts[2:]])
