"""Dense features in whose place the minimiser takes others, where some are nearly one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Float64

# Where the columns, each of size 1, have a direction of less than the first, their basis is another
# one; of less than the second part of the largest one, it is rounding, and says nothing.
NEARLY, DEPENDENT = 1e-3, 1e-13
# Directions of the dense features whose curvature is less than this part of the largest one are
# taken to be without: a feature that never differs, or two that always do alike.
FLAT = 1e-13
# Curvatures of features below it are none: the square of their inverse is no number any more.
NOTHING = 1e-290
# Rows that are looked at at a time.
CHUNK = 1 << 16


@dataclass(frozen=True)
class DenseBasis:
    """Z of k' columns with X = Z B: X itself, or orthogonal columns.

    The weights v = B w of Z give the same margins as w of X. Curvatures of Z are of full rank to
    machine precision where those of X, with squares of differences that are themselves small,
    are not.

    matrix (float64 [k', k]): B. A gradient by v, times B, is that by w.
    back (float64 [k, k']): the inverse of B that is least in the unit of what features do; None
        where B is I.
    """

    matrix: Float64
    back: Float64 | None = None

    def weights(self, inside: Float64, start: Float64) -> Float64:
        """Return weights w with B w = v, nearest to a start in the unit of what features do."""
        if self.back is None:
            return inside
        found: Float64 = start + self.back @ (inside - self.matrix @ start)
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
    # All singular values of X that are no less than this are well known even from their squares.
    if k == 0 or np.linalg.eigvalsh(gram / np.outer(length, length))[0] >= NEARLY**2:
        return x, DenseBasis(np.eye(k))
    _, part, turn = np.linalg.svd(triangle(x, size))
    kept = part > DEPENDENT * part[0]
    part, turn, root = part[kept, None], turn[kept], np.sqrt(len(x))
    back = root * (turn / part).T / size[:, None]
    return x @ back, DenseBasis(part * turn * size / root, back)


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
