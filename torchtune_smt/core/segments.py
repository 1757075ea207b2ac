"""Functions of the hypotheses of lists of any lengths, which lie one list behind the other.

List s has the hypotheses ``begin[s] .. begin[s + 1] - 1`` of a tensor [n], and none is padded. All
of them know their gradients, and work where their tensors lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def owners(begin: Tensor, n: int) -> Tensor:
    """Return the list of each of n hypotheses, int64 [n]; `begin` is int64 [S + 1]."""
    return torch.repeat_interleave(begin.diff(), output_size=n)


def sums(values: Tensor, begin: Tensor) -> Tensor:
    """Return the sum of each list, [S], of floating-point values [n]; 0 of an empty one.

    >>> sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 3]))
    tensor([3., 4.])
    """
    return torch.segment_reduce(values, "sum", offsets=begin, initial=0)


def log_softmax(scores: Tensor, begin: Tensor) -> Tensor:
    """Return the log of each hypothesis's probability in its list, [n].

    >>> log_softmax(torch.tensor([5.0, 5.0, 7.0]), torch.tensor([0, 2, 3])).exp()
    tensor([0.5000, 0.5000, 1.0000])
    """
    owner = owners(begin, scores.numel())
    largest = torch.segment_reduce(scores.detach(), "max", offsets=begin)
    shifted = scores - largest[owner]
    return shifted - sums(shifted.exp(), begin).log()[owner]


def expected_gain(scores: Tensor, gains: Tensor, begin: Tensor) -> Tensor:
    """Return E[gain] of each list, [S], under the softmax of its scores.

    >>> gains = torch.tensor([0.2, 0.6, 1.0])
    >>> expected_gain(torch.tensor([5.0, 5.0, 7.0]), gains, torch.tensor([0, 2, 3]))
    tensor([0.4000, 1.0000])
    """
    return sums(log_softmax(scores, begin).exp() * gains, begin)


def margins(scores: Tensor, pairs: Tensor) -> Tensor:
    """Return s(better) - s(worse) of pairs of hypotheses, [p].

    >>> margins(torch.tensor([5.0, 4.0, 7.0]), torch.tensor([[2, 1], [0, 1]]))
    tensor([3., 1.])

    pairs (int64 tensor [p, 2]): numbers of hypotheses, counted through all lists.
    """
    better, worse = scores[pairs.reshape(-1)].view(-1, 2).unbind(1)
    return better - worse


def matrices(begin: Tensor, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield, for each length that lists have, which ones have it, and their numbers as matrices.

    >>> for lists, matrix in matrices(torch.tensor([0, 1, 3, 4]), torch.tensor([9, 8, 7, 6])):
    ...     print(lists.tolist(), matrix.tolist())
    [0, 2] [[9], [6]]
    [1] [[8, 7]]

    columns (tensors [n])

    Returns lists (int64 tensor [L]): ascending; lengths ascend, too.
    Returns matrices (tensors [L, length]): one for each column.
    """
    of_each, order = begin.diff().sort(stable=True)
    found: Any = torch.unique_consecutive(of_each, return_counts=True)
    lengths, counts = (tensor.tolist() for tensor in found)
    for lists, length in zip(torch.split(order, counts), lengths, strict=True):
        places = begin[lists].unsqueeze(1) + torch.arange(length, device=begin.device)
        chosen = (column.index_select(0, places.reshape(-1)) for column in columns)
        yield (lists, *(column.view(places.shape) for column in chosen))
