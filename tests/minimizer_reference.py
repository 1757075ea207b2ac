"""Slow and obvious: the minimum of the mean loss with OSCAR, its residual, its dual norm."""

import itertools

import numpy as np
from optim_reference import oscar_prox
from scipy.optimize import linprog

from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer, SmoothedHinge, SquaredHinge

LOSSES = [SmoothedHinge(0.05), SquaredHinge(), Logistic()]
# The largest second derivatives.
BENDS = {SquaredHinge: 1.0, Logistic: 0.25}
EXACT = Accuracy(residual=1e-9, gap=1e-7)


def most_bent(loss):
    return BENDS[type(loss)] if type(loss) in BENDS else 0.5 / loss.mu


def rows_of(x):
    rows, columns = np.nonzero(x)
    begin = np.append(0, np.cumsum(np.bincount(rows, minlength=len(x)))).astype(np.int64)
    return Rows(begin, columns.astype(np.int32), x[rows, columns].astype(np.float64))


def problem(seed=0, n=300, n_dense=3, d=12, noise=1.0):
    """Pairs of features, dense ones first; some always fire together."""
    draw = np.random.default_rng(seed)
    dense = draw.normal(size=(n, n_dense)) * np.logspace(0, 2, n_dense)
    sparse = (draw.random((n, d)) < 0.3) * draw.choice([-1.0, 1.0, 2.0], (n, d))
    sparse[:, 1] = sparse[:, 0]
    x = np.hstack([dense, sparse])
    w = np.append(np.full(n_dense, 0.1), draw.integers(-1, 2, d))
    margins = x @ w + noise * draw.normal(size=n)
    return x * np.where(margins < 0, -1.0, 1.0)[:, None]


def rare(seed, n, d, k, noise=1.0):
    """Pairs of k features each, most of which are rare; and what goes on drawing."""
    draw = np.random.default_rng(seed)
    often = 1.0 / (np.arange(d) + 3.0)
    x = np.zeros((n, d))
    for row in x:
        row[draw.choice(d, k, replace=False, p=often / often.sum())] = draw.choice([-1.0, 1.0], k)
    margins = x @ draw.normal(size=d) + noise * draw.normal(size=n)
    return x * np.where(margins < 0, -1.0, 1.0)[:, None], draw


def scaled(x, n_dense, loss, fraction, strengths=(0.0, 1.0)):
    """Return a minimiser, and a part of lambda_max."""
    minimizer = Minimizer(rows_of(x), n_dense, loss)
    penalty = minimizer.penalty(*strengths)
    return minimizer, penalty.times(fraction * minimizer.largest_scale(penalty))


def penalties(penalty, count):
    return np.array(
        [penalty.lambda1 + penalty.lambda2 * (penalty.dimension - 1 - i) for i in range(count)]
    )


def objective(x, n_dense, loss, penalty, w):
    size = np.sort(np.abs(w[n_dense:]))[::-1]
    return loss.mean(x @ w) + penalties(penalty, size.size) @ size


def hinge_minimum(x, n_dense, penalty):
    """The least mean hinge with OSCAR, by linear programming.

    Variables: w, the shortfalls s >= 1 - xw of the pairs, |w| of each sparse feature, and a maximum
    for each two of them.
    """
    n, d = x.shape
    u = d - n_dense
    two = list(itertools.combinations(range(u), 2))
    alone = penalty.lambda1 + penalty.lambda2 * (penalty.dimension - u)
    costs = np.zeros(d), np.full(n, 1.0 / n), np.full(u, alone), np.full(len(two), penalty.lambda2)
    cost = np.concatenate(costs)
    size, most = d + n, d + n + u
    # Each is at least 0: s - (1 - xw), |w| - w, |w| + w, max - |w|.
    rows = [np.hstack([x, np.eye(n), np.zeros((n, u + len(two)))])]
    for j in range(u):
        row = np.zeros((2, cost.size))
        row[:, size + j] = 1.0
        row[:, n_dense + j] = -1.0, 1.0
        rows.append(row)
    for k, pair in enumerate(two):
        row = np.zeros((2, cost.size))
        row[:, most + k] = 1.0
        row[[0, 1], [size + j for j in pair]] = -1.0
        rows.append(row)
    matrix = np.vstack(rows)
    bounds = [(None, None)] * d + [(0.0, None)] * (cost.size - d)
    least = np.append(np.ones(n), np.zeros(len(matrix) - n))
    found = linprog(cost, -matrix, -least, bounds=bounds)
    assert found.status == 0
    return found.fun


def fista(x, n_dense, loss, penalty, steps):
    """Accelerated proximal steps on all features, with restarts, and nothing else."""
    n, d = x.shape
    step = 1.0 / (most_bent(loss) * np.linalg.norm(x, 2) ** 2 / n)
    # Zeros that d counts, and the vector does not have, have the smallest penalties.
    lambda1 = penalty.lambda1 + penalty.lambda2 * (penalty.dimension - (d - n_dense))
    w = y = np.zeros(d)
    momentum = 1.0
    for _ in range(steps):
        new = y + step * (x.T @ loss.pulls(x @ y) / n)
        new[n_dense:] = oscar_prox(new[n_dense:], step * lambda1, step * penalty.lambda2)
        if (y - new) @ (new - w) > 0.0:
            momentum = 1.0
        if np.abs(new - w).max() < 1e-10 and np.abs(new - y).max() < 1e-10:
            break
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        y = new + (momentum - 1.0) / following * (new - w)
        w, momentum = new, following
    return w


def residual(w, pull, penalty):
    p = penalties(penalty, w.size)
    worst = 0.0
    rank = 0
    for size in sorted(set(np.abs(w)), reverse=True):
        block = np.flatnonzero(np.abs(w) == size)
        away = np.sort(pull[block] * np.sign(w[block]) if size else np.abs(pull[block]))[::-1]
        excess = np.cumsum(away - p[rank : rank + block.size])
        worst = max(worst, excess.max(), abs(excess[-1]) if size else 0.0)
        rank += block.size
    return worst


def boundary(penalty, w, pull, curvature, tolerance):
    """Places of the features that `torchtune_smt.minimizer.penalty.at_boundary` returns."""
    levels = sorted({abs(value) for value in w}, reverse=True)
    blocks = [[j for j in range(w.size) if abs(w[j]) == level] for level in levels]
    away = [abs(pull[j]) if w[j] == 0 else pull[j] * np.sign(w[j]) for j in range(w.size)]
    p = penalties(penalty, w.size)
    reach = []
    for level, block in zip(levels, blocks, strict=True):
        bend = curvature[block].sum()
        reach.append(0.0 if level == 0 else tolerance / bend if bend > 0 else np.inf)
    found = set()
    rank = 0
    for b, (level, block) in enumerate(zip(levels, blocks, strict=True)):
        block = sorted(block, key=lambda j: -away[j])
        left = np.cumsum([p[rank + k] - away[j] for k, j in enumerate(block)])
        tight = [k for k in range(len(block)) if left[k] <= tolerance]
        if level == 0 and tight:
            found |= {j for j in block if away[j] >= away[block[tight[-1]]] - tolerance}
        if level > 0 and any(k < len(block) - 1 for k in tight):
            found |= set(block)
        if b + 1 < len(levels) and level - levels[b + 1] <= reach[b] + reach[b + 1]:
            found |= set(block)
            if levels[b + 1] > 0:
                found |= set(blocks[b + 1])
        rank += len(block)
    if levels[-1] > 0 and levels[-1] <= reach[-1]:
        found |= set(blocks[-1])
    return found
