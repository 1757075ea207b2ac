"""Vectors that grow with a parameter."""

from __future__ import annotations

import torch
from torch import Tensor


def lengthened(tensor: Tensor, length: int, fill: float) -> Tensor:
    """Return a vector with its first entries those of `tensor`, its new ones `fill`.

    Room grows by a quarter at a time, so that growing costs O(1) an entry. Where there is room
    already, the result shares the memory of `tensor`. Room that is not in use is never
    written to, and takes no memory.
    """
    old = tensor.numel()
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    if length > room:
        larger = torch.empty(max(length, room * 5 // 4), dtype=tensor.dtype, device=tensor.device)
        larger[:old] = tensor
        tensor = larger
    longer = tensor.as_strided((length,), (1,))
    longer[old:] = fill
    return longer
