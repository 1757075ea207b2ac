"""How strong the norm must be for noise to have no weight."""

from __future__ import annotations

import math
from collections.abc import Callable

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.minimizer import Minimizer
from torchtune_smt.minimizer.penalty import Penalty


def check_share(share: float) -> None:
    """Raise ValueError unless a share of draws is above 0 and below 1."""
    if not 0 < share < 1:
        raise ValueError(f"noise must be above 0 and below 1, not {share}")


def noise_draws(share: float) -> int:
    """Return of how many draws of noise the largest λ_max is taken: 19 for 0.95, 99 for 0.99.

    The fewest of which one more draw of the same noise is above it with a probability of 1 - share
    at most.

    Raises
    ------
    ValueError
        The share is not above 0 and below 1.
    """
    check_share(share)
    return max(math.ceil(1.0 / (1.0 - share) - 1e-9) - 1, 1)


def noise_scale(
    draw: Callable[[int], Rows],
    penalty: Penalty,
    n_dense: int,
    loss: MarginLoss,
    share: float = 0.95,
    *,
    start: Float64 | None = None,
    device: str = "cpu",
    on_draw: Callable[[int, int], None] = lambda done, draws: None,
) -> float:
    """Return the scale of a penalty from which on noise has no weight, in a share of draws.

    λ_max of the pairs, which `Minimizer.largest_scale` gives, is where the strongest feature ends,
    and does not tell whether that one means anything. This is a quantile of λ_max over pairs in
    which no feature does. A draw takes a pass for the gradient, and some over dense features.

    Parameters
    ----------
    draw : callable
        Returns pairs whose features say nothing, and that are like those of interest otherwise:
        of lists with `torchtune_smt.samplers.shuffled_gains`. Draw n, counted from 0, of
        `noise_draws`.
    penalty : Penalty
        Of a d that is at least the number of sparse features in each draw.
    n_dense, loss, device
        As for `Minimizer`.
    share : float
    start : float64 [D], optional
        Where the dense weights begin.
    on_draw : callable
        Told after each draw how many were made, of how many.

    Raises
    ------
    InputError
        A draw has no pairs, or more sparse features than d.
    ValueError
        The share is not above 0 and below 1.
    """
    draws, scales = noise_draws(share), []
    dimension = None if start is None else start.size
    for number in range(draws):
        minimizer = Minimizer(draw(number), n_dense, loss, dimension, device)
        same = minimizer.penalty(penalty.lambda1, penalty.lambda2, penalty.dimension)
        scales.append(minimizer.largest_scale(same, start))
        on_draw(number + 1, draws)
    return max(scales)
