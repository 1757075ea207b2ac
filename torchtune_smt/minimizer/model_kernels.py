"""The quadratic model of the mean loss on a few features, with OSCAR: its minimum.

Dense features are not regularised: they are taken at their optimum for each value of the others,
which leaves S = H_ss - H_sd H_dd⁻¹ H_ds. The model is ½ (v - w)ᵀS(v - w) + gᵀ(v - w) + Ω(v).
"""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.minimizer.sorted_kernels import Strengths, at_rank
from torchtune_smt.regularizers.oscar_kernels import pool
from torchtune_smt.regularizers.sort_kernels import sort_again, sort_by_size

Columns = tuple[Int64, Int32, Float64, Float64, Float64, Float64, Float64]
"""S: the columns of X with H_ss = Xᵀ diag(scale) X, scale; H_sd and (H_dd⁻¹ H_ds)ᵀ, both
[m, dense]; and what is added to the diagonal, [m]."""

Operator = tuple[Int64, Int32, Float64, Float64, bool, Float64, Float64, Float64]
"""S: the rows of X, which may be none, or of H_ss itself; scale; whether they are those of H_ss,
which needs no scale; and the rest as in `Columns`."""


@kernel
def apply(operator: Operator, x: Float64, out: Float64) -> None:
    """Write S x."""
    begin, feature, value, scale, written, cross, solved, ridge = operator
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
def accelerated(
    operator: Operator,
    linear: Float64,
    v: Float64,
    strengths: Strengths,
    bound: float,
    steps: int,
    block: Int64,
) -> tuple[float, int]:
    """Take accelerated proximal steps with restarts on ½ vᵀSv + linearᵀv + Ω(v), in place.

    bound: of the curvature; it is raised where it proves too low.
    block (int64 [m]): written: the blocks of equal |v|, descending, -1 for zeros.

    Returns bound
    Returns blocks
    """
    lambda1, lambda2, dimension = strengths
    m = v.size
    now = np.empty(m)
    apply(operator, v, now)
    before, previous = now.copy(), v.copy()
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
            apply(operator, new, s_new)
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
    operator: Operator,
    weight: Float64,
    linear: Float64,
    v: Float64,
    strengths: Strengths,
    block: Int64,
    damping: float,
    steps: int,
    tolerance: float,
) -> Float64:
    """Return a Newton step in the values of blocks, by preconditioned conjugate gradients.

    weight (float64 [blocks]): the preconditioner; `damping` times it is added to S (Levenberg and
        Marquardt).

    Returns float64 [blocks]: by how much |v| is to rise.
    """
    m, blocks = v.size, weight.size
    sign = np.sign(v)
    x, s_x = v.copy(), np.empty(m)
    apply(operator, x, s_x)
    residual, size = np.zeros(blocks), np.zeros(blocks, np.int64)
    for j in range(m):
        b = block[j]
        if b >= 0:
            residual[b] -= sign[j] * (s_x[j] + linear[j])
            size[b] += 1
    rank = 0
    for b in range(blocks):
        for _ in range(size[b]):
            residual[b] -= at_rank(strengths, rank)
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
        apply(operator, x, s_x)
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
def sweep(columns: Columns, linear: Float64, v: Float64, strengths: Strengths, sweeps: int) -> None:
    """Take sweeps over the blocks of v on ½ vᵀSv + linearᵀv + Ω(v), in place.

    Algorithm 1 of Larsson, Klopfenstein, Massias and Wallin (2023), "Coordinate descent for SLOPE",
    without its proximal steps: a sweep moves one block of equal weights at a time to where it is
    best while all others stay. Blocks pass each other, merge, and reach 0; nothing comes apart.
    """
    begin, row, value, scale, cross, solved, ridge = columns
    lambda1, lambda2, dimension = strengths
    m, width = v.size, cross.shape[1]
    # X v, and H_dd⁻¹ H_ds v.
    reached, low = np.zeros(scale.size), np.zeros(width)
    for j in range(m):
        if v[j] != 0.0:
            for q in range(begin[j], begin[j + 1]):
                reached[row[q]] += value[q] * v[j]
            for c in range(width):
                low[c] += solved[j, c] * v[j]
    order, size = np.empty(m, np.int64), np.empty(m)
    sort_by_size(v, order, size)
    # Blocks in descending order, and the members of each, as linked lists; -1 ends them.
    level, count = np.empty(m + 1), np.zeros(m + 1, np.int64)
    head, tail = np.empty(m + 1, np.int64), np.empty(m + 1, np.int64)
    upper, lower = np.empty(m + 1, np.int64), np.empty(m + 1, np.int64)
    follower = np.full(m, -1, np.int64)
    n = 0
    for k in range(m):
        j = order[k]
        if size[k] == 0.0:
            break
        if n > 0 and level[n - 1] == size[k]:
            follower[tail[n - 1]] = j
        else:
            level[n], head[n] = size[k], j
            upper[n], lower[n] = n - 1, n + 1
            n += 1
        tail[n - 1] = j
        count[n - 1] += 1
    if n == 0:
        return
    lower[n - 1] = -1
    first = 0
    # Of one block: its column, and where that is not 0.
    column, mark = np.zeros(scale.size), np.full(scale.size, -1, np.int64)
    touched = np.empty(scale.size, np.int64)
    along, followed = np.empty(width), np.empty(width)
    highest = lambda1 + lambda2 * (dimension - 1)
    stamp = 0
    for _ in range(sweeps):
        b = first
        above = 0
        while b >= 0:
            following = lower[b]
            own = count[b]
            stamp += 1
            rows = 0
            pull, bend = 0.0, 0.0
            along[:] = 0.0
            followed[:] = 0.0
            j = head[b]
            while j >= 0:
                sign = 1.0 if v[j] > 0.0 else -1.0
                pull -= sign * linear[j] + ridge[j] * level[b]
                bend += ridge[j]
                for q in range(begin[j], begin[j + 1]):
                    i = row[q]
                    if mark[i] != stamp:
                        mark[i] = stamp
                        touched[rows] = i
                        rows += 1
                        column[i] = 0.0
                    column[i] += sign * value[q]
                for c in range(width):
                    along[c] += sign * cross[j, c]
                    followed[c] += sign * solved[j, c]
                j = follower[j]
            bent = 0.0
            for k in range(rows):
                i = touched[k]
                weighted = scale[i] * column[i]
                pull -= weighted * reached[i]
                bent += weighted * column[i]
            for c in range(width):
                pull += along[c] * low[c]
                bent -= along[c] * followed[c]
            bend += max(bent, 0.0)
            # The best is at ±(|target| - penalties of the ranks) / bend.
            target = bend * level[b] + pull
            goal = abs(target)
            rank = above
            half = highest - 0.5 * lambda2 * (own - 1)
            up, down = upper[b], lower[b]
            new = (goal - own * (half - lambda2 * rank)) / bend
            joined = -1
            while up >= 0 and new >= level[up]:
                rank -= count[up]
                new = (goal - own * (half - lambda2 * rank)) / bend
                if new <= level[up]:
                    joined = up
                    break
                up, down = upper[up], up
            if rank == above:
                while down >= 0 and new <= level[down]:
                    rank += count[down]
                    new = (goal - own * (half - lambda2 * rank)) / bend
                    if new >= level[down]:
                        joined = down
                        break
                    up, down = down, lower[down]
            if joined >= 0:
                new = level[joined]
            new = max(new, 0.0)
            if rank <= above:
                above += own
            flip = -1.0 if target < 0.0 else 1.0
            change = flip * new - level[b]
            if change != 0.0:
                for k in range(rows):
                    reached[touched[k]] += change * column[touched[k]]
                for c in range(width):
                    low[c] += change * followed[c]
                j = head[b]
                while j >= 0:
                    v[j] = np.copysign(new, flip * v[j]) if new > 0.0 else 0.0
                    j = follower[j]
                level[b] = new
                if up != upper[b] or down != lower[b] or joined >= 0 or new == 0.0:
                    # Out of the list.
                    if upper[b] >= 0:
                        lower[upper[b]] = lower[b]
                    else:
                        first = lower[b]
                    if lower[b] >= 0:
                        upper[lower[b]] = upper[b]
                    if joined >= 0:
                        follower[tail[joined]] = head[b]
                        tail[joined] = tail[b]
                        count[joined] += own
                    elif new > 0.0:
                        upper[b], lower[b] = up, down
                        if up >= 0:
                            lower[up] = b
                        else:
                            first = b
                        if down >= 0:
                            upper[down] = b
            b = following
