"""PRO: ranking as classification of pairs (Hopkins and May 2011)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.devices import check_device
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.batch import Solution
from torchtune_smt.tuners.gradient import check_pairs


@dataclass(frozen=True)
class Pro:
    """L2-regularised logistic regression that tells the better hypothesis of each pair.

    Each pair is seen from both sides, x as good and -x as bad, as the published classifier does.
    What is minimised is

        2 Σ log(1 + exp(-w·x)) + ‖w‖² / (2 σ²)

    over all pairs x = H(better) - H(worse): scikit-learn's ``LogisticRegression`` on both sides
    with C = σ² and no intercept. The weights do not depend on where the search starts. Features
    that are in no pair get weight 0.

    Parameters
    ----------
    sampler : PairSampler
        Hopkins and May keep 50 pairs of a list.
    sigma : float
        σ, of the Gaussian prior of all weights: the smaller, the smaller they are. 0.1 in Green
        et al. (2013).
    tolerance : float
        The search is over when no derivative of the objective, divided by the number of examples,
        is larger.
    steps : int
        Of the search (L-BFGS), at most.
    device : {"cpu", "cuda"}
        Where the search runs.

    Raises
    ------
    ValueError
        A value is out of range, or the device is not there.
    """

    sampler: PairSampler
    sigma: float = 1.0
    tolerance: float = 1e-6
    steps: int = 1000
    device: str = "cpu"

    takes_pairs = True

    def __post_init__(self) -> None:
        if not 0 < self.sigma < float("inf"):
            raise ValueError(f"sigma must be finite and above 0, not {self.sigma}")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be above 0, not {self.tolerance}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        check_device(self.device)

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for pairs of the lists; see `solve_pairs`."""
        return self.solve_pairs(pair_rows(lists, self.sampler, seed), start, seed)

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return the weights with the least objective; see `PairSolver.solve_pairs`.

        The report has the number of ``pairs``, their mean ``loss`` log(1 + exp(-w·x)), the
        ``steps`` of the search, and the largest ``derivative`` at its end. Nothing is drawn.

        Raises
        ------
        InputError
            There are no pairs.
        """
        check_pairs(len(pairs))
        chosen, rows = pairs.numbered()
        examples, ridge = 2 * len(rows), 1 / self.sigma**2
        matrix, transposed = _matrices(rows, chosen.size, self.device)
        w = torch.nn.Parameter(torch.from_numpy(start[chosen]).to(self.device))
        search = torch.optim.LBFGS(
            [w],
            max_iter=self.steps,
            tolerance_grad=self.tolerance,
            tolerance_change=1e-14,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        @torch.no_grad()
        def objective() -> Tensor:
            margins = matrix @ w
            w.grad = (ridge * w - 2 * (transposed @ torch.sigmoid(-margins))) / examples
            losses = F.softplus(-margins)
            return (2 * losses.sum() + ridge / 2 * w.dot(w)) / examples

        if w.numel():
            # An L-BFGS step is the whole search.
            search.step(objective)  # type: ignore[no-untyped-call]
        objective()
        assert w.grad is not None
        weights = np.zeros_like(start)
        weights[chosen] = w.detach().cpu().numpy()
        report = {
            "pairs": len(rows),
            "loss": float(F.softplus(-(matrix @ w.detach())).mean()),
            "steps": search.state[w].get("n_iter", 0),
            "derivative": float(np.abs(w.grad.cpu().numpy()).max(initial=0.0)),
        }
        return Solution(weights, report)


def _matrices(rows: Rows, columns: int, device: str) -> tuple[Tensor, Tensor]:
    """Return rows as a sparse CSR matrix, and its transpose."""
    row_begin = torch.from_numpy(rows.begin).to(device)
    column = torch.from_numpy(rows.feature.astype(np.int64)).to(device)
    value = torch.from_numpy(rows.value).to(device)
    size = (len(rows), columns)
    order = torch.argsort(column, stable=True)
    row = torch.repeat_interleave(row_begin.diff())[order]
    counts = torch.bincount(column, minlength=columns)
    begin = F.pad(counts.cumsum(0), (1, 0))
    with warnings.catch_warnings():
        # torch calls such matrices beta; products with them are compared with dense ones in tests.
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)", category=UserWarning)
        matrix = torch.sparse_csr_tensor(row_begin, column, value, size, check_invariants=False)
        transposed = torch.sparse_csr_tensor(
            begin, row, value[order], size[::-1], check_invariants=False
        )
    return matrix, transposed
