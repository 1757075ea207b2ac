"""Linearised AROW with proximal regularisation, exact and lazy."""

from __future__ import annotations

from typing import ClassVar

from torch.optim.optimizer import ParamsT

from torchtune_smt.optim.adagrad import AdaGrad
from torchtune_smt.optim.sparse import Group
from torchtune_smt.regularizers.base import Regularizer


class AROW(AdaGrad):
    """Linearised AROW (Green et al. 2013, Eqs. 10, 11; Chiang 2012), with a diagonal Σ.

    At step t, for each coordinate, with P = 1/Σ its precision: P += g²; w -= lr · g / P; w = prox
    with step lr / P. It is `AdaGrad` without the square root: under gradients of one size steps
    fall as 1/t, not as 1/√t, and the first ones depend on the precision at the start. Everything
    else is as there.

    The gradient of the linearised loss stands for x (their α_t is 1), so any loss will do, such as
    the pairwise logistic and hinge; for the hinge, a pair that is in order has no effect on P.

    Parameters
    ----------
    params : iterable of tensors or param groups
        Vectors.
    lr : float
        η > 0.
    regularizer : Regularizer, optional
        As for `AdaGrad`.
    unregularized : int
        This many first coordinates (the dense features) are exempt.
    initial_precision : float
        1/Σ_0, above 0: the first step of a coordinate is lr · g / (initial_precision + g²).

    Raises
    ------
    ValueError
        An argument is out of range, or the regulariser lacks what is needed.
    """

    square_root: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        initial_precision: float = 1.0,
    ) -> None:
        super().__init__(
            params,
            lr,
            regularizer,
            unregularized=unregularized,
            initial_accumulator=initial_precision,
        )

    def _check_group(self, group: Group) -> None:
        # With 0 a first step would be lr / g, the larger the smaller the gradient.
        if not 0 < group["initial_accumulator"] < float("inf"):
            raise ValueError(
                f"initial_precision must be finite and above 0, not {group['initial_accumulator']}"
            )
        super()._check_group(group)
