"""What lists were sorted by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64


def sorted_by(begin: Int64, features: Float64, score: Float64) -> tuple[Float64, float]:
    """Return the weights whose sums of features are nearest to scores, by least squares.

    Only differences within a list count: what is added to a whole list, a normaliser or the score
    of the source, has no effect on its order.

    begin (int64 [S + 1]): where each list begins; none is empty.
    features (float64 [d, n]), score (float64 [n])

    Returns weights (float64 [d]): the smallest ones, where several are as near.
    Returns share: what they explain of the variance of the scores within the lists, at most 1.
    """
    table = np.vstack([features, score])
    lengths = np.diff(begin)
    table = table - np.repeat(np.add.reduceat(table, begin[:-1], axis=1) / lengths, lengths, axis=1)
    scale = np.sqrt((table**2).mean(axis=1))
    rows = (table / np.where(scale > 0, scale, 1)[:, None]).T
    found, *_ = np.linalg.lstsq(rows[:, :-1], rows[:, -1])
    # Of the others this is rounding.
    found[np.abs(found) <= 1e-6 * np.abs(found).max(initial=0)] = 0
    left = ((rows[:, -1] - rows[:, :-1] @ found) ** 2).mean()
    factor = np.where(scale[:-1] > 0, scale[-1] / np.where(scale[:-1] > 0, scale[:-1], 1), 0)
    weights: Float64 = np.asarray(found * factor, np.float64)
    return weights, float(1 - left) if scale[-1] > 0 else 0.0


def scale_of(begin: Int64, score: Float64, share: float) -> float:
    """Return the scale at which softmax(scale · score) has a share of the largest entropy.

    That is the mean over lists of several hypotheses, each in parts of the logarithm of their
    number. It falls with the scale. 0 where all scores of each list are equal.
    """
    length = np.diff(begin)
    below = score - np.repeat(np.maximum.reduceat(score, begin[:-1]), length)
    if not below.any():
        return 0.0
    several = length > 1
    most = np.log(length[several])
    low, high = (factor / float(np.abs(below).max()) for factor in (1e-6, 1e12))
    # Bisection, of logarithms: to the last bits of what they are apart.
    for _ in range(80):
        scale = float(np.sqrt(low * high))
        p = np.exp(scale * below)
        total = np.add.reduceat(p, begin[:-1])
        entropy = np.log(total) - scale * np.add.reduceat(p * below, begin[:-1]) / total
        enough = float((entropy[several] / most).mean()) > share
        low, high = (scale, high) if enough else (low, scale)
    return scale


def combination(names: Sequence[str], weights: Float64) -> str:
    """Return weights as a sum for people: 0.7 decoder + 0.3 ctc - 0.1 length."""
    parts = []
    for name, weight in zip(names, weights.tolist(), strict=True):
        if weight:
            parts += ["-" if weight < 0 else "+", f"{abs(weight):.4g} {name}"]
    if not parts:
        return "0"
    return " ".join(parts[1:] if parts[0] == "+" else [parts[0] + parts[1], *parts[2:]])
