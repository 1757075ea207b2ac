"""What a loss is: pairwise, on margins; or listwise, on scores and gains."""

from __future__ import annotations

import inspect
from typing import Final, Literal, Protocol, TypeGuard, get_args

from torch import Tensor
from torch.nn import Module

from torchtune_smt.core.accepts import Checked, accepting, one_of
from torchtune_smt.core.checks import described
from torchtune_smt.core.errors import InputError

Reduction = Literal["sum", "mean", "each"]
_REDUCTION: Final = one_of(*get_args(Reduction))


class Reduced(Checked):
    """A loss with an argument `reduction`: see `PairwiseLoss` and `ListwiseLoss`."""

    accepts = accepting(reduction=_REDUCTION)


class PairwiseLoss(Protocol):
    """A loss ℓ(z) of a pair's margin z = W·(H(better) - H(worse)).

    Its gradient comes from autograd, so a new loss is one expression of torch functions.

    reduction ("sum", "mean" or "each"): how the pairs of a mini-batch act: one step along the
        gradient of the sum or of the mean of their losses, or a step after each pair, in order,
        under the weights that the pair before has left.
    """

    @property
    def reduction(self) -> Reduction:
        """How the pairs of a mini-batch act."""
        ...

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair (tensor [pairs]) from its margin (tensor [pairs])."""
        ...


class ListwiseLoss(Protocol):
    """A loss of a whole k-best list.

    listwise: tells it from a pairwise loss.
    reduction ("sum", "mean" or "each"): as for pairwise losses, with lists in the place of pairs.
    """

    @property
    def listwise(self) -> Literal[True]:
        """True."""
        ...

    @property
    def reduction(self) -> Reduction:
        """How the lists of a mini-batch act."""
        ...

    def __call__(self, scores: Tensor, gains: Tensor) -> Tensor:
        """Return the loss of each list.

        scores (tensor [lists, k]): model scores W·H, up to a constant for each list, which the loss
            must not depend on. Lists of different lengths come in different calls, so nothing is
            padded.
        gains (tensor [lists, k])

        Returns tensor [lists]
        """
        ...


Loss = PairwiseLoss | ListwiseLoss


def is_listwise(loss: Loss) -> TypeGuard[ListwiseLoss]:
    """Say whether a loss takes lists; one that does not say so takes pairs."""
    return bool(getattr(loss, "listwise", False))


def check_loss(loss: Loss) -> None:
    """Raise TypeError if a loss, perhaps of a user's class, lacks what its kind has.

    What a class says of `listwise` holds for its subclasses, too: it is how they are called.
    """
    listwise = is_listwise(loss)
    arguments = ("scores", "gains") if listwise else ("margins",)
    try:
        inspect.signature(loss).bind(*arguments)
    except TypeError:
        name = type(loss).__name__
        raise TypeError(
            f"the loss {name} has listwise = {listwise}, its own or a parent's, and its __call__ "
            f"does not take ({', '.join(arguments)}): set listwise = {not listwise} in {name}, or "
            "let __call__ take them"
        ) from None
    if not hasattr(loss, "reduction"):
        raise TypeError(
            f"the loss {type(loss).__name__} has no reduction, which says how the "
            f'{"lists" if listwise else "pairs"} of a mini-batch act: "sum", "mean" or "each"'
        )
    _REDUCTION.check(f"the reduction of the loss {type(loss).__name__}", loss.reduction)
    if isinstance(loss, Module) and any(p.requires_grad for p in loss.parameters()):
        raise TypeError(
            f"the loss {type(loss).__name__} has parameters, which nobody would tune: the "
            "optimizer has the weights of features alone; make them buffers or numbers"
        )


def check_losses(losses: Tensor, loss: Loss, given: Tensor) -> Tensor:
    """Return what a loss, perhaps of a user's class, has made of margins, or of scores of lists.

    Raises InputError: it is not one number for each, or autograd does not know how it depends on
    them.
    """
    count = len(given)
    if isinstance(losses, Tensor) and losses.shape == (count,) and not losses.is_sparse:
        if count and given.requires_grad and not losses.requires_grad:
            raise InputError(
                f"the loss {type(loss).__name__} returned numbers that autograd knows no gradient "
                "of: compute them from what it is given, with functions of torch alone, without "
                "detach, no_grad, item or numpy, and not as integers"
            )
        return losses
    of = "list" if is_listwise(loss) else "pair"
    raise InputError(
        f"the loss {type(loss).__name__} must return a tensor of shape ({count},), one number for "
        f"each {of}, and returned {described(losses)}; functions of torch.nn.functional do with "
        'reduction="none"'
    )


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Return the sum (also for "each") or the mean of some losses; 0 where there are none.

    Raises ValueError: the reduction is not known.
    """
    _REDUCTION.check("reduction", reduction)
    total = losses.sum()
    return total / losses.numel() if reduction == "mean" and losses.numel() else total
