"""The minimum of Eq. 2 of Liu et al. (2013) over stored pairs, with a certificate."""

from torchtune_smt.minimizer.losses import Logistic, MarginLoss, SmoothedHinge, SquaredHinge
from torchtune_smt.minimizer.minimizer import Minimizer, noise_draws, noise_scale, path_scales
from torchtune_smt.minimizer.minimum import Accuracy, Certificate, Minimum, Residual
from torchtune_smt.minimizer.penalty import Penalty

__all__ = [
    "Accuracy",
    "Certificate",
    "Logistic",
    "MarginLoss",
    "Minimizer",
    "Minimum",
    "Penalty",
    "Residual",
    "SmoothedHinge",
    "SquaredHinge",
    "noise_draws",
    "noise_scale",
    "path_scales",
]
