"""Second derivatives of the mean loss, with dense features taken out."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.minimizer import model_kernels as kernels
from torchtune_smt.minimizer import passes_kernels as passes

# Directions of the dense features whose curvature is less than this part of the largest one are
# taken to be without: a feature that never differs, or two that always do alike.
FLAT = 1e-13
# Curvatures of features below it are none: the square of their inverse is no number any more.
NOTHING = 1e-290
# What is added to the curvature of sparse features, as part of the largest one, had all features
# values of one size. It is no part of a feature's own, which may have next to none at the moment.
RIDGE = 1e-7


class Curvature:
    """H of m sparse and k dense features, and S = H_ss - H_sd H_dd⁻¹ H_ds.

    S is the curvature of the mean loss if dense features always follow to their optimum. It is
    never written down as a whole: H_ss is sparse, and k is small.

    Parameters
    ----------
    rows : (int64 [rows + 1], int32 array, float64 array)
        X of the sparse features.
    columns : (int64 [m + 1], int32 array, float64 array)
        The same by columns.
    scale : float64 [rows]
        H_ss = Xᵀ diag(scale) X.
    cross : float64 [m, k]
        H_sd.
    dense : float64 [k, k]
        H_dd.
    bound : float64 [m]
        What is added to the diagonal of H_ss, for rows that X leaves out.
    size : float64 [m]
        How large values of the sparse features are.

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
        rows: tuple[Int64, Int32, Float64],
        columns: tuple[Int64, Int32, Float64],
        scale: Float64,
        cross: Float64,
        dense: Float64,
        bound: Float64,
        size: Float64,
    ) -> None:
        self.inverse = inverse(dense)
        self.solved: Float64 = cross @ self.inverse
        self.cross = cross
        own = kernels.diagonal(*rows, scale, cross.shape[0])
        square = size * size
        most = float(
            np.divide(own, square, out=np.zeros_like(own), where=square > 0).max(initial=0)
        )
        ridge = bound + RIDGE * most * square + 1e-300
        self.operator = (*rows, scale, False, cross, self.solved, ridge)
        self.by_column = (*columns, scale, cross, self.solved, ridge)
        left: Float64 = np.maximum(own - (cross * self.solved).sum(1), 1e-3 * own) + ridge
        self.diagonal = left

    def apply(self, x: Float64) -> Float64:
        """Return S x."""
        out = np.empty(x.size)
        kernels.apply(*self.operator, x, out)
        return out

    def write_down(self) -> None:
        """Write H_ss down, where products then take no longer: for many of them."""
        begin, feature, value, scale, written = self.operator[:5]
        if not written:
            # A product with XᵀX takes as long as it has non-zeros; or twice as long as X has.
            gram = passes.gram(begin, feature, value, scale, *self.by_column[:3], 2 * value.size)
            if gram[0].size:
                self.operator = (*gram, np.empty(0), True, *self.operator[5:])

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
    own = np.diag(matrix)
    scale = np.divide(1.0, np.sqrt(own), out=np.zeros_like(own), where=own > NOTHING)
    value, vector = np.linalg.eigh(scale[:, None] * matrix * scale)
    kept = value > FLAT * value.max(initial=0.0)
    vector = scale[:, None] * vector[:, kept]
    inverse: Float64 = (vector / value[kept]) @ vector.T
    return inverse
