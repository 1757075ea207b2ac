"""Coordinate descent over blocks of equal weights, with OSCAR.

Algorithm 1 of Larsson, Klopfenstein, Massias and Wallin (2023), "Coordinate descent for SLOPE",
without its proximal steps: a sweep moves one block at a time to where it is best while all others
stay. Blocks pass each other, merge, and reach 0; nothing comes apart.
"""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.regularizers.sort_kernels import sort_by_size


@kernel
def sweep(
    begin: Int64,
    row: Int32,
    value: Float64,
    scale: Float64,
    cross: Float64,
    solved: Float64,
    ridge: Float64,
    linear: Float64,
    v: Float64,
    lambda1: float,
    lambda2: float,
    dimension: int,
    sweeps: int,
) -> None:
    """Take sweeps over the blocks of v on ½ vᵀSv + linearᵀv + Ω(v), in place.

    Parameters
    ----------
    begin, row, value : int64 [m + 1], int32 array, float64 array
        The columns of X.
    scale : float64 [rows]
        H_ss = Xᵀ diag(scale) X.
    cross, solved, ridge
        See `torchtune_smt.minimizer.model_kernels.apply`.
    """
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
