"""What a loss is: pairwise, on margins; or listwise, on scores and gains of whole lists."""

from __future__ import annotations

import inspect
from typing import Final, Literal, Protocol, TypeGuard, cast, get_args

from torch import Tensor
from torch.nn import Module

from torchtune_smt.core.accepts import Checked, accepting, one_of
from torchtune_smt.core.checks import described
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.segments import margins, matrices
from torchtune_smt.kbest.tensors import ListTensors

Reduction = Literal["sum", "mean", "each"]
_REDUCTION: Final = one_of(*get_args(Reduction))


class Reduced(Checked):
    """A loss with an argument `reduction`: see `PairwiseLoss` and `ListwiseLoss`."""

    accepts = accepting(reduction=_REDUCTION)


class PairwiseLoss(Protocol):
    """A loss ℓ(z) of a pair's margin z = W·(H(better) - H(worse)).

    Its gradient comes from autograd, so a new loss is one expression of torch functions.

    reduction: how the pairs of a mini-batch act: one step along the gradient of the sum or of the
        mean of their losses, or ("each") a step after each pair, in order, under the weights that
        the pair before has left.
    """

    @property
    def reduction(self) -> Reduction:
        """How pairs act, or lists."""

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair (tensor [pairs]) from its margin (tensor [pairs])."""
        ...


class ListwiseLoss(Protocol):
    """A loss of a whole k-best list.

    listwise: tells it from a pairwise loss.
    reduction: as for pairwise losses, with lists in the place of pairs.
    """

    @property
    def listwise(self) -> Literal[True]:
        """True."""

    @property
    def reduction(self) -> Reduction:
        """How pairs act, or lists."""

    def __call__(self, scores: Tensor, gains: Tensor) -> Tensor:
        """Return the loss of each list (tensor [lists]) from scores and gains [lists, k].

        Scores are W·H up to a constant for each list, which the loss must not depend on. Lists of
        different lengths come in different calls, so nothing is padded.
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
    name, listwise = type(loss).__name__, is_listwise(loss)
    arguments = ("scores", "gains") if listwise else ("margins",)
    try:
        inspect.signature(loss).bind(*arguments)
    except TypeError:
        raise TypeError(
            f"the loss {name} has listwise = {listwise}, its own or a parent's, and its __call__ "
            f"does not take ({', '.join(arguments)}): set listwise = {not listwise} in {name}, or "
            "let __call__ take them"
        ) from None
    if not hasattr(loss, "reduction"):
        raise TypeError(
            f"the loss {name} has no reduction, which says how the pairs or lists of a mini-batch "
            'act: "sum", "mean" or "each"'
        )
    _REDUCTION.check(f"the reduction of the loss {name}", loss.reduction)
    if isinstance(loss, Module) and any(p.requires_grad for p in loss.parameters()):
        raise TypeError(
            f"the loss {name} has parameters, which nobody would tune: the optimizer has the "
            "weights of features alone; make them buffers or numbers"
        )


def check_losses(losses: Tensor, loss: Loss, given: Tensor) -> Tensor:
    """Return what a loss, perhaps of a user's class, has made of margins, or of scores of lists.

    Raises InputError: it is not one number for each, or autograd does not know it.
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
    """Return the sum (also for "each") or the mean of some losses; 0 where there are none."""
    total = losses.sum()
    return total / losses.numel() if reduction == "mean" and losses.numel() else total


def loss_of_lists(loss: Loss, scores: Tensor, batch: ListTensors) -> Tensor:
    """Return a loss of each list, or of each pair.

    >>> from torchtune_smt.lists import KBestLists
    >>> from torchtune_smt.losses import Softmax
    >>> lists = KBestLists.of_strings([["a", "b"], ["c", "d", "e"]], gains=[[1, 0], [0, 1, 1]])
    >>> loss_of_lists(Softmax(), Tensor([0, 0, 0, 0, 0]), lists.to_torch())
    tensor([0.6931, 0.4055])

    scores (tensor [n]): of all hypotheses, from whatever model.
    batch: with gains where the loss is listwise, and pairs where it is pairwise.

    Returns tensor [S] or [pairs]: a list of less than two hypotheses has nothing to choose from,
        and the loss 0.

    Raises InputError: the loss is of a user's class, and does not return one number for each.
    """
    if scores.shape != (batch.row_begin.numel() - 1,):
        raise ValueError(
            f"scores are of shape {tuple(scores.shape)}, and there are "
            f"{batch.row_begin.numel() - 1} hypotheses"
        )
    if not is_listwise(loss):
        if batch.pairs is None:
            raise ValueError("a pairwise loss needs pairs: lists.to_torch(pairs=...)")
        given = margins(scores, batch.pairs)
        return check_losses(cast(PairwiseLoss, loss)(given), loss, given)
    if batch.gain is None:
        raise ValueError("these lists have no gains")
    losses = listwise_losses(loss, scores, batch.gain.to(scores), batch.begin)
    # 0, for a gradient where no list has anything to choose from.
    return losses + scores[:0].sum()


def listwise_losses(loss: ListwiseLoss, scores: Tensor, gains: Tensor, begin: Tensor) -> Tensor:
    """Return a loss of each list (tensor [S]); see `loss_of_lists`."""
    result = scores.new_zeros(begin.numel() - 1)
    for lists, some_scores, some_gains in matrices(begin, scores, gains):
        if some_scores.shape[1] > 1:
            # As differences to the best score. Where its probability is next to 1, the derivative
            # of its own score is lost in rounding; now it is minus the sum of the others.
            best = some_scores.detach().argmax(1, keepdim=True)
            found = loss(some_scores - some_scores.gather(1, best), some_gains)
            result = result.index_copy(0, lists, check_losses(found, loss, some_scores))
    return result
