"""PRO: ranking as classification of pairs (Hopkins and May 2011)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.core.accepts import Checked, above, accepting, between, integer
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import DEVICE, check_device
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import csr_matrices
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.optim.sparse import of_torch
from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.solver import TOWARDS, Solution, Towards

# Steps of the search between looks at the derivatives.
CHECKED: Final = 5
# Features that are in a quarter of the pairs, as dense ones are, are scaled together; so many of
# them, at most.
SHARE: Final = 4
TOGETHER: Final = 32


@dataclass(frozen=True)
class Pro(Checked):
    """L2-regularised logistic regression that tells the better hypothesis of each pair.

    Each pair is seen from both sides, x as good and -x as bad, as the published classifier does.
    What is minimised is

        2 Σ log(1 + exp(-w·x)) + ‖w‖² / (2 σ²)

    over all pairs x = H(better) - H(worse): scikit-learn's ``LogisticRegression`` on both sides
    with C = σ² and no intercept. The weights do not depend on where the search starts. Features
    that are in no pair get weight 0. With `towards` "start", ‖w - start‖² is in the place of ‖w‖²,
    and they keep their weights.

    sampler: Hopkins and May keep 50 pairs of a list.
    sigma: σ, of the Gaussian prior of all weights: the smaller, the smaller they are. 0.1 in Green
        et al. (2013).
    tolerance: the search is over when no derivative of the objective, divided by the number of
        examples, is larger.
    towards ("zero", "start"): the mean of the prior.
    steps: of the search (L-BFGS, in variables that curve about alike; see `Scaling`), at most.
    device ("cpu", "cuda"): where the search runs.
    """

    accepts = accepting(
        sigma=between(1e-100, 1e100),
        tolerance=above(0, infinite=True),
        steps=integer(1),
        towards=TOWARDS,
        device=DEVICE,
    )

    sampler: PairSampler
    sigma: float = 1.0
    tolerance: float = 1e-6
    steps: int = 1000
    towards: Towards = "zero"
    device: str = "cpu"

    takes_pairs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """See `solve_pairs`."""
        return self.solve_pairs(pair_rows(lists, self.sampler, seed), start, seed)

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return the weights with the least objective; see `PairSolver.solve_pairs`.

        The report has the number of ``pairs``, their mean ``loss`` log(1 + exp(-w·x)), the
        ``steps`` of the search, and the largest ``derivative`` at its end.

        Raises InputError: there are no pairs. DivergenceError: see `Scaling`.
        """
        check_pairs(len(pairs))
        chosen, rows = pairs.numbered()
        examples, ridge = 2 * len(rows), 1 / self.sigma**2
        matrix, transposed = csr_matrices(rows, chosen.size, self.device)
        scaling = Scaling(rows, chosen.size, ridge, self.device)
        begin = torch.from_numpy(start[chosen]).to(self.device)
        v = torch.nn.Parameter(scaling.scaled(begin))
        center = begin if self.towards == "start" else torch.zeros_like(begin)
        derivative = torch.zeros_like(v)

        @torch.no_grad()
        def objective() -> Tensor:
            w = scaling.weights(v)
            margins = matrix @ w
            from_center = w - center
            derivative[:] = (
                ridge * from_center - 2 * (transposed @ torch.sigmoid(-margins))
            ) / examples
            v.grad = scaling.derivative(derivative)
            losses = F.softplus(-margins)
            return (2 * losses.sum() + ridge / 2 * from_center.dot(from_center)) / examples

        steps = self._search(v, derivative, objective)
        with torch.no_grad():
            w = scaling.weights(v)
        weights = start.copy() if self.towards == "start" else np.zeros_like(start)
        weights[chosen] = w.cpu().numpy()
        report = {
            "pairs": len(rows),
            "loss": float(F.softplus(-(matrix @ w)).mean()),
            "steps": steps,
            "derivative": float(np.abs(derivative.cpu().numpy()).max(initial=0.0)),
        }
        return Solution(weights, report)

    def _search(self, v: Tensor, derivative: Tensor, objective: Callable[[], Tensor]) -> int:
        """Follow the objective down to where derivatives are small; return the number of steps.

        Those with respect to weights must be small, and L-BFGS sees those with respect to `v`: so
        it is asked for some steps at a time.
        """
        search = _Search(
            [v],
            tolerance_grad=0.0,
            # Of the objective, which is about 1: none that can be told.
            tolerance_change=1e-16,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        objective()
        steps = 0
        while steps < self.steps and bool((derivative.abs() > self.tolerance).any()):
            most = min(CHECKED, self.steps - steps)
            # Each has a search along a line, of some evaluations.
            search.param_groups[0].update(max_iter=most, max_eval=25 * most)
            search.step(objective)  # type: ignore[no-untyped-call]
            objective()
            taken = search.state[v]["n_iter"] - steps
            steps += taken
            if taken < most:
                # No step leads further down, as far as rounding can tell.
                break
        return steps


class _Search(torch.optim.LBFGS):  # that imports no compiler
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        of_torch(super().add_param_group)(param_group)


class Scaling:
    """Weights w and scaled variables v = Aᵀ w, where A Aᵀ is near ½ XᵀX + ridge I.

    That is the largest curvature that the objective of `Pro` can have, and in v it is near I. Of
    frequent features A is the Cholesky factor, of each other one the root of its own curvature. The
    rows are X.

    Raises DivergenceError: values are too large to be squared, or not finite.
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
    dense = rows.renamed(place).dense(chosen.size)
    return dense.T @ dense
