"""Variables in which PRO's objective curves about alike in all directions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows

# Features that are in a quarter of the pairs, as dense ones are, are scaled together; so many of
# them, at most.
SHARE = 4
TOGETHER = 32


class Scaling:
    """Weights w and scaled variables v = Aᵀ w, where A Aᵀ is near ½ XᵀX + ridge I.

    That is the largest curvature that the objective of `Pro` can have, and in v it is near I. Of
    frequent features A is the Cholesky factor, of each other one the root of its own curvature.

    Parameters
    ----------
    rows : Rows
        X, the pairs.
    columns : int
    ridge : float
        Above 0.
    device : torch.device or str

    Raises
    ------
    DivergenceError
        Values are too large to be squared, or not finite.
    """

    def __init__(self, rows: Rows, columns: int, ridge: float, device: torch.device | str) -> None:
        counts = np.bincount(rows.feature, minlength=columns)
        frequent = np.argsort(-counts, kind="stable")[:TOGETHER]
        frequent = frequent[SHARE * counts[frequent] >= len(rows)]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.bincount(rows.feature, rows.value**2, minlength=columns)
            root: Float64 = np.sqrt(squares / 2 + ridge)
            curvature = _gram(rows, frequent, columns) / 2
        if not (np.isfinite(root).all() and np.isfinite(curvature).all()):
            raise DivergenceError(
                "squares of feature values are not finite: check the feature values of the k-best "
                "lists, of which none may be above 1e150 or so"
            )
        root[frequent] = 1.0
        # Columns that are the same would leave nothing but rounding.
        least = ridge + 1e-12 * curvature.diagonal().max(initial=0.0)
        factor = np.linalg.cholesky(curvature + least * np.eye(frequent.size))
        self._root = torch.from_numpy(root).to(device)
        self._frequent = torch.from_numpy(frequent).to(device)
        self._factor = torch.from_numpy(factor).to(device)

    def scaled(self, weights: Tensor) -> Tensor:
        """Return v."""
        result = weights * self._root
        result[self._frequent] = self._factor.T @ weights[self._frequent]
        return result

    def weights(self, scaled: Tensor) -> Tensor:
        """Return w."""
        result = scaled / self._root
        result[self._frequent] = self._solved(self._factor.T, scaled[self._frequent], upper=True)
        return result

    def derivative(self, of_weights: Tensor) -> Tensor:
        """Return the derivative with respect to v from that with respect to w."""
        result = of_weights / self._root
        result[self._frequent] = self._solved(self._factor, of_weights[self._frequent], upper=False)
        return result

    @staticmethod
    def _solved(factor: Tensor, right: Tensor, *, upper: bool) -> Tensor:
        result: Tensor = torch.linalg.solve_triangular(factor, right[:, None], upper=upper)[:, 0]
        return result


def _gram(rows: Rows, chosen: Int64, columns: int) -> Float64:
    """Return XᵀX of some columns."""
    place = np.full(columns, -1)
    place[chosen] = np.arange(chosen.size)
    at = place[rows.feature]
    inside = at >= 0
    row = np.repeat(np.arange(len(rows)), np.diff(rows.begin))
    dense = np.zeros((len(rows), chosen.size))
    dense[row[inside], at[inside]] = rows.value[inside]
    return dense.T @ dense
