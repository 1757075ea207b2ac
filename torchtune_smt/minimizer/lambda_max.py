"""λ_max: the strength of the norm from which on no sparse feature has a weight."""

from __future__ import annotations

from torchtune_smt.core.arrays import Float64
from torchtune_smt.minimizer.dense_optimum import growing, told_by
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.penalty import Penalty
from torchtune_smt.minimizer.stored_pairs import StoredPairs

# λ_max is known to rounding, and nothing is to survive there.
ROUNDED_UP = 1.0 + 1e-12
# Pulls of pairs that cancel leave a part of them that is less than the first, and dense weights at
# their optimum one of pulls of 1 that is less than the second.
CANCELLED, FOLLOWED = 1e-12, 1e-14


def lambda_max(
    pairs: StoredPairs, loss: MarginLoss, penalty: Penalty, dense: Float64, margins: Float64
) -> float:
    """Return λ_max as a multiple of a penalty; 0 where all that is left of pulls is rounding.

    It is 0 as well where all pairs are told apart.

    Parameters
    ----------
    dense : float64 [k]
        Dense weights at the minimum without sparse features.
    margins : float64 [N]
        The margins there.
    """
    if (margins > 0.0).all():
        return 0.0
    pulls = loss.pulls(margins)
    # Of what dense weights tell on their way to infinity nothing is left in the end.
    pulls[told_by(pairs, growing(pairs, pulls, dense))] = 0.0
    largest = penalty.dual_norm(pairs.means(pulls)[1])
    rounding = pairs.mean_sizes(CANCELLED * pulls + FOLLOWED)
    return largest * ROUNDED_UP if largest > penalty.dual_norm(rounding) else 0.0
