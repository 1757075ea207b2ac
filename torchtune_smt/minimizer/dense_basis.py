"""Dense features in whose place the minimiser takes others, where some are nearly one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64

# A column of which less than the first part is independent of those before it is replaced by that
# part; less than the second is rounding, and the column says nothing of its own.
NEARLY, DEPENDENT = 1e-3, 1e-13
# Directions of the dense features whose curvature is less than this part of the largest one are
# taken to be without: a feature that never differs, or two that always do alike.
FLAT = 1e-13
# Curvatures of features below it are none: the square of their inverse is no number any more.
NOTHING = 1e-290
# Rows that are changed at a time.
CHUNK = 1 << 16


@dataclass(frozen=True)
class DenseBasis:
    """Z of k' columns with X = Z B: each is one of X, or what one has of its own.

    The weights v = B w of Z give the same margins as w of X. Curvatures of Z are of full rank to
    machine precision where those of X, with squares of differences that are themselves small,
    are not. Few columns are replaced, mostly none, so that where a pair has a 0 it keeps it.

    matrix (float64 [k', k]): B.
    kept (int64 [k']): columns of X that those of Z stand for; other ones are combinations of these.
    size (float64 [k]): norms of the columns of X.
    """

    matrix: Float64
    kept: Int64
    size: Float64

    def inside(self, weights: Float64) -> Float64:
        """Return v, float64 [k'], for weights w of X."""
        found: Float64 = self.matrix @ weights
        return found

    def weights(self, inside: Float64, start: Float64) -> Float64:
        """Return weights w with B w = v, nearest to a start in the unit of what features do."""
        b, kept = self.matrix, self.kept
        found = np.zeros(start.size)
        found[kept] = np.linalg.solve(b[:, kept], inside)
        others = np.setdiff1d(np.arange(start.size), kept)
        if others.size:
            # Directions that change nothing.
            flat = np.zeros((start.size, others.size))
            flat[others, np.arange(others.size)] = 1.0
            flat[kept] = -np.linalg.solve(b[:, kept], b[:, others])
            scale = self.size[:, None]
            away = self.size * (start - found)
            found += flat @ np.linalg.lstsq(scale * flat, away, rcond=None)[0]
        return found

    def gradient(self, inside: Float64) -> Float64:
        """Return the gradient by w, float64 [k], given that by v."""
        found: Float64 = inside @ self.matrix
        return found


def dense_basis(x: Float64) -> tuple[Float64, DenseBasis]:
    """Return Z, which is X itself where no columns are nearly one, and how they belong together.

    x (float64 [N, k]): X, which stays as it is.
    """
    k = x.shape[1]
    largest = np.maximum(x.max(axis=0, initial=0.0), -x.min(axis=0, initial=0.0))
    largest[largest == 0.0] = 1.0
    # Of columns divided by these, or their squares might not be finite.
    gram = np.zeros((k, k))
    for begin in range(0, len(x), CHUNK):
        rows = x[begin : begin + CHUNK] / largest
        gram += rows.T @ rows
    length = np.sqrt(np.diag(gram))
    length[length == 0.0] = 1.0
    size = largest * length
    same = DenseBasis(np.eye(k), np.arange(k), size)
    # All singular values of X that are no less than this are well known even from their squares.
    if k == 0 or np.linalg.eigvalsh(gram / np.outer(length, length))[0] >= NEARLY**2:
        return x, same
    basis, replaced = independent(triangle(x, size), size, np.sqrt(len(x)))
    kept = basis.kept
    x = x.copy()
    for begin in range(0, len(x), CHUNK):
        rows = x[begin : begin + CHUNK]
        for place in replaced:
            j = kept[place]
            rows[:, j] -= rows[:, kept[:place]] @ basis.matrix[:place, j]
            rows[:, j] /= basis.matrix[place, j]
    return (x if kept.size == k else np.ascontiguousarray(x[:, kept])), basis


def independent(r: Float64, size: Float64, norm: float) -> tuple[DenseBasis, list[int]]:
    """Return a basis of columns, one after the other, and the places in it of new ones.

    r (float64 [k, k]): `triangle` of X.
    size (float64 [k]): norms of the columns of X.
    norm: that of columns that are made.
    """
    k = size.size
    matrix = np.zeros((k, k))
    # Of Z, whose columns have norm 1 here, and their norms.
    columns, norms = np.zeros((k, 0)), np.zeros(0)
    kept: list[int] = []
    replaced: list[int] = []
    for j, column in enumerate(r.T):
        n = len(kept)
        rest, part = column.copy(), np.zeros(n)
        # Twice, or rounding of the first time is left in what is small.
        for _ in range(2 if n else 0):
            more = np.linalg.lstsq(columns, rest, rcond=None)[0]
            part += more
            rest -= columns @ more
        own = float(np.linalg.norm(rest))
        if own >= NEARLY:
            matrix[n, j] = 1.0
            new, length = column, float(size[j])
        else:
            matrix[:n, j] = size[j] * part / norms
            if own <= DEPENDENT:
                continue
            matrix[n, j] = size[j] * own / norm
            new, length = rest / own, norm
            replaced.append(n)
        columns, norms = np.column_stack([columns, new]), np.append(norms, length)
        kept.append(j)
    return DenseBasis(matrix[: len(kept)], np.array(kept, np.int64), size), replaced


def triangle(x: Float64, size: Float64) -> Float64:
    """Return R of the QR decomposition of columns divided by their sizes, float64 [k, k]."""
    k = x.shape[1]
    found = np.zeros((k, k))
    for begin in range(0, len(x), CHUNK):
        rows = np.vstack([found, x[begin : begin + CHUNK] / size])
        found = np.asarray(np.linalg.qr(rows, mode="r"), np.float64)
    return found


def inverse(matrix: Float64) -> Float64:
    """Return the inverse of a positive semidefinite matrix where it has one."""
    own = np.diag(matrix)
    scale = np.divide(1.0, np.sqrt(own), out=np.zeros_like(own), where=own > NOTHING)
    value, vector = np.linalg.eigh(scale[:, None] * matrix * scale)
    kept = value > FLAT * value.max(initial=0.0)
    vector = scale[:, None] * vector[:, kept]
    inverse: Float64 = (vector / value[kept]) @ vector.T
    return inverse
