"""Any loss on lists of any lengths."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from torchtune_smt.core.segments import margins, matrices
from torchtune_smt.kbest.tensors import ListTensors
from torchtune_smt.losses.base import ListwiseLoss, Loss, PairwiseLoss, check_losses, is_listwise


def loss_of_lists(loss: Loss, scores: Tensor, batch: ListTensors) -> Tensor:
    """Return a loss of each list, or of each pair.

    >>> from torchtune_smt.lists import KBestLists
    >>> from torchtune_smt.losses import Softmax
    >>> lists = KBestLists.of_strings([["a", "b"], ["c", "d", "e"]], gains=[[1, 0], [0, 1, 1]])
    >>> loss_of_lists(Softmax(), Tensor([0, 0, 0, 0, 0]), lists.to_torch())
    tensor([0.6931, 0.4055])

    loss: of this package or your own.
    scores (tensor [n]): of all hypotheses, from whatever model.
    batch: with gains where the loss is listwise, and pairs where it is pairwise.

    Returns tensor [S] or [pairs]: a list of less than two hypotheses has nothing to choose from,
        and the loss 0.

    Raises ValueError: the batch has no gains, or no pairs, or not a score for each hypothesis.
        InputError: the loss is of a user's class, and does not return one number for each.
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
    """Return a loss of each list, [S]; see `loss_of_lists`."""
    result = scores.new_zeros(begin.numel() - 1)
    for lists, some_scores, some_gains in matrices(begin, scores, gains):
        if some_scores.shape[1] > 1:
            # As differences to the best score. Where its probability is next to 1, the derivative
            # of its own score is lost in rounding; now it is minus the sum of the others.
            best = some_scores.detach().argmax(1, keepdim=True)
            found = loss(some_scores - some_scores.gather(1, best), some_gains)
            result = result.index_copy(0, lists, check_losses(found, loss, some_scores))
    return result
