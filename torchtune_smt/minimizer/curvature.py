"""Second derivatives of the mean loss, with dense features taken out."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.minimizer import model_kernels as kernels

# Directions of the dense features whose curvature is less than this part of the largest one are
# taken to be without: a feature that never differs, or two that always do alike.
FLAT = 1e-13
# What is added to the curvature of sparse features, as part of the largest one.
RIDGE = 1e-7


class Curvature:
    """H of m sparse and k dense features, and S = H_ss - H_sd H_dd⁻¹ H_ds.

    S is the curvature of the mean loss if dense features always follow to their optimum. It is
    never written down: H_ss is sparse, and k is small.

    Parameters
    ----------
    sparse : (int64 array, int32 array, float64 array, float64 array)
        H_ss, written down or as rows; see `model_kernels.apply`.
    columns : (int64 [m + 1], int32 array, float64 array, float64 array)
        X by columns, and the scale of its rows: H_ss = Xᵀ diag(scale) X.
    cross : float64 [m, k]
        H_sd.
    dense : float64 [k, k]
        H_dd.

    Attributes
    ----------
    operator : tuple
        S plus a ridge, as the kernels of models take it.
    by_column : tuple
        The same, as those of clusters take it.
    diagonal : float64 [m]
        Of S, at least a small part of that of H_ss.
    """

    def __init__(
        self,
        sparse: tuple[Int64, Int32, Float64, Float64],
        columns: tuple[Int64, Int32, Float64, Float64],
        cross: Float64,
        dense: Float64,
    ) -> None:
        self.inverse = inverse(dense)
        self.solved: Float64 = cross @ self.inverse
        self.cross = cross
        own = kernels.diagonal(*sparse, cross.shape[0])
        self.ridge = RIDGE * float(own.max(initial=0.0)) + 1e-300
        self.operator = (*sparse, cross, self.solved, self.ridge)
        self.by_column = (*columns, cross, self.solved, self.ridge)
        left: Float64 = np.maximum(own - (cross * self.solved).sum(1), 1e-3 * own) + self.ridge
        self.diagonal = left

    def apply(self, x: Float64) -> Float64:
        """Return S x."""
        out = np.empty(x.size)
        kernels.apply(*self.operator, x, out)
        return out

    def follow(self, dense_pull: Float64, moved: Float64) -> Float64:
        """Return how dense weights change to their optimum.

        Parameters
        ----------
        dense_pull : float64 [k]
            Their negative gradient before.
        moved : float64 [m]
            Changes of the sparse weights.
        """
        change: Float64 = self.inverse @ dense_pull - moved @ self.solved
        return change

    def reduced(self, dense_pull: Float64, sparse_pull: Float64) -> Float64:
        """Return the negative gradient of the sparse features once dense ones have followed."""
        pull: Float64 = sparse_pull - self.solved @ dense_pull
        return pull


def inverse(matrix: Float64) -> Float64:
    """Return the inverse of a positive semidefinite matrix where it has one."""
    size = np.sqrt(np.diag(matrix))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    value, vector = np.linalg.eigh(scale[:, None] * matrix * scale)
    kept = value > FLAT * value.max(initial=0.0)
    vector = scale[:, None] * vector[:, kept]
    inverse: Float64 = (vector / value[kept]) @ vector.T
    return inverse
