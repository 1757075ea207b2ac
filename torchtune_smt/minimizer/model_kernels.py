"""The quadratic model of the mean loss on a few features, with OSCAR: its minimum.

Dense features are not regularised: they are taken at their optimum for each value of the others,
which leaves S = H_ss - H_sd H_dd⁻¹ H_ds. The model is ½ (v - w)ᵀS(v - w) + gᵀ(v - w) + Ω(v).
"""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.regularizers.oscar_kernels import pool
from torchtune_smt.regularizers.sort_kernels import sort_again, sort_by_size


@kernel
def apply(
    begin: Int64,
    feature: Int32,
    value: Float64,
    scale: Float64,
    written: bool,
    cross: Float64,
    solved: Float64,
    ridge: Float64,
    x: Float64,
    out: Float64,
) -> None:
    """Write S x.

    Parameters
    ----------
    begin, feature, value, scale
        H_ss = Xᵀ diag(scale) X, with X in CSR form, which may have no row.
    written : bool
        Whether it is H_ss itself that is in CSR form; `scale` is then not read.
    cross, solved : float64 [m, dense]
        H_sd, and (H_dd⁻¹ H_ds)ᵀ.
    ridge : float64 [m]
        Is added to the diagonal.
    """
    width = cross.shape[1]
    low = np.zeros(width)
    for j in range(x.size):
        if x[j] != 0.0:
            for c in range(width):
                low[c] += solved[j, c] * x[j]
    if written:
        for j in range(x.size):
            total = ridge[j] * x[j]
            for p in range(begin[j], begin[j + 1]):
                total += value[p] * x[feature[p]]
            out[j] = total
    else:
        for j in range(x.size):
            out[j] = ridge[j] * x[j]
        for i in range(scale.size):
            total = 0.0
            for p in range(begin[i], begin[i + 1]):
                total += value[p] * x[feature[p]]
            total *= scale[i]
            for p in range(begin[i], begin[i + 1]):
                out[feature[p]] += total * value[p]
    if width:
        for j in range(x.size):
            total = 0.0
            for c in range(width):
                total += cross[j, c] * low[c]
            out[j] -= total


@kernel
def diagonal(begin: Int64, feature: Int32, value: Float64, scale: Float64, m: int) -> Float64:
    """Return the diagonal of Xᵀ diag(scale) X, float64 [m], with X in CSR form."""
    out = np.zeros(m)
    for i in range(scale.size):
        for p in range(begin[i], begin[i + 1]):
            out[feature[p]] += scale[i] * value[p] * value[p]
    return out


@kernel
def accelerated(
    begin: Int64,
    feature: Int32,
    value: Float64,
    scale: Float64,
    written: bool,
    cross: Float64,
    solved: Float64,
    ridge: Float64,
    linear: Float64,
    v: Float64,
    lambda1: float,
    lambda2: float,
    dimension: int,
    bound: float,
    steps: int,
    block: Int64,
) -> tuple[float, int]:
    """Take accelerated proximal steps with restarts on ½ vᵀSv + linearᵀv + Ω(v), in place.

    Parameters
    ----------
    bound : float
        Of the curvature; it is raised where it proves too low.
    block : int64 [m]
        Written: the blocks of equal |v|, descending, -1 for zeros.

    Returns
    -------
    bound : float
    blocks : int
    """
    m = v.size
    now, before = np.empty(m), np.empty(m)
    apply(begin, feature, value, scale, written, cross, solved, ridge, v, now)
    before[:] = now
    previous = v.copy()
    y, s_y, point, new, s_new = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    order, size = np.empty(m, np.int64), np.empty(m)
    sort_by_size(v, order, size)
    first, level = np.empty(m + 1, np.int64), np.empty(m)
    momentum = 1.0
    n = 0
    for _ in range(steps):
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum))
        beta = (momentum - 1.0) / following
        for j in range(m):
            y[j] = v[j] + beta * (v[j] - previous[j])
            s_y[j] = now[j] + beta * (now[j] - before[j])
        while True:
            for j in range(m):
                point[j] = y[j] - (s_y[j] + linear[j]) / bound
            if not sort_again(point, order, size, 2 * m):
                sort_by_size(point, order, size)
            n = pool(size, lambda1 / bound, lambda2 / bound, dimension, first, level)
            for b in range(n):
                for rank in range(first[b], first[b + 1]):
                    j = order[rank]
                    new[j] = np.copysign(level[b], point[j]) if level[b] > 0.0 else 0.0
                    block[j] = b if level[b] > 0.0 else -1
            apply(begin, feature, value, scale, written, cross, solved, ridge, new, s_new)
            bent, length, turn, extent = 0.0, 0.0, 0.0, 0.0
            for j in range(m):
                d = new[j] - y[j]
                bent += d * (s_new[j] - s_y[j])
                length += d * d
                extent += y[j] * y[j]
                turn -= d * (new[j] - v[j])
            # Or nothing but rounding moves, of which no bound is high enough.
            if not bent > bound * length * (1.0 + 1e-9) + 1e-300 or length <= 1e-30 * extent:
                break
            bound = max(1.5 * bound, 1.01 * bent / length)
        for j in range(m):
            previous[j], before[j] = v[j], now[j]
            v[j], now[j] = new[j], s_new[j]
        momentum = 1.0 if turn > 0.0 else following
    while n > 0 and level[n - 1] <= 0.0:
        n -= 1
    return bound, n


@kernel
def face_direction(
    begin: Int64,
    feature: Int32,
    value: Float64,
    scale: Float64,
    written: bool,
    cross: Float64,
    solved: Float64,
    ridge: Float64,
    preconditioner: Float64,
    linear: Float64,
    v: Float64,
    lambda1: float,
    lambda2: float,
    dimension: int,
    block: Int64,
    blocks: int,
    damping: float,
    steps: int,
    tolerance: float,
) -> Float64:
    """Return a Newton step in the values of blocks, by preconditioned conjugate gradients.

    Parameters
    ----------
    damping : float
        So many times the preconditioner is added to S (Levenberg and Marquardt).

    Returns
    -------
    float64 [blocks]
        By how much |v| is to rise.
    """
    m = v.size
    sign = np.sign(v)
    x, s_x = v.copy(), np.empty(m)
    apply(begin, feature, value, scale, written, cross, solved, ridge, x, s_x)
    residual, weight = np.zeros(blocks), np.zeros(blocks)
    size = np.zeros(blocks, np.int64)
    for j in range(m):
        b = block[j]
        if b >= 0:
            residual[b] -= sign[j] * (s_x[j] + linear[j])
            weight[b] += preconditioner[j]
            size[b] += 1
    rank = 0
    for b in range(blocks):
        for _ in range(size[b]):
            residual[b] -= lambda1 + lambda2 * (dimension - 1 - rank)
            rank += 1
    result = np.zeros(blocks)
    z = residual / weight
    direction = z.copy()
    product = np.dot(residual, z)
    goal = tolerance * tolerance * product
    s_d = np.empty(blocks)
    for _ in range(steps):
        if product <= goal or product <= 0.0:
            break
        for j in range(m):
            x[j] = sign[j] * direction[block[j]] if block[j] >= 0 else 0.0
        apply(begin, feature, value, scale, written, cross, solved, ridge, x, s_x)
        s_d[:] = 0.0
        for j in range(m):
            if block[j] >= 0:
                s_d[block[j]] += sign[j] * s_x[j]
        for b in range(blocks):
            s_d[b] += damping * weight[b] * direction[b]
        bent = np.dot(direction, s_d)
        if bent <= 0.0:
            break
        step = product / bent
        for b in range(blocks):
            result[b] += step * direction[b]
            residual[b] -= step * s_d[b]
            z[b] = residual[b] / weight[b]
        new = np.dot(residual, z)
        for b in range(blocks):
            direction[b] = z[b] + new / product * direction[b]
        product = new
    return result


@kernel
def moved(v: Float64, block: Int64, level: Float64) -> Float64:
    """Return v with each block at another |v|, or at 0 where that would be below."""
    out = np.zeros(v.size)
    for j in range(v.size):
        if block[j] >= 0 and level[block[j]] > 0.0:
            out[j] = np.copysign(level[block[j]], v[j])
    return out


@kernel
def descending(level: Float64, weight: Float64) -> Float64:
    """Return the nearest levels, in the squares of differences by weight, that do not rise."""
    n = 0
    mean, mass = np.empty(level.size), np.empty(level.size)
    length = np.empty(level.size, np.int64)
    for b in range(level.size):
        mean[n], mass[n], length[n] = level[b], weight[b], 1
        n += 1
        while n > 1 and mean[n - 1] >= mean[n - 2]:
            both = mass[n - 2] + mass[n - 1]
            mean[n - 2] = (mass[n - 2] * mean[n - 2] + mass[n - 1] * mean[n - 1]) / both
            mass[n - 2] = both
            length[n - 2] += length[n - 1]
            n -= 1
    out = np.empty(level.size)
    b = 0
    for i in range(n):
        for _ in range(length[i]):
            out[b] = mean[i]
            b += 1
    return out
