"""What optimizers with sparse gradients and growing parameters share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchtune_smt.errors import DivergenceError


def sparse_gradient(parameter: Tensor, optimizer: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of a parameter as (indices, values), indices ascending and unique.

    Parameters
    ----------
    parameter : tensor [D]
        With a gradient.
    optimizer : str
        Its name, for the error.

    Raises
    ------
    TypeError
        The gradient is dense.
    DivergenceError
        A value is NaN or infinite; the error names the feature's id.
    """
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        raise TypeError(
            f"{optimizer} takes sparse gradients and got a dense one: compute scores with "
            "torchtune_smt.scoring, whose gradients are sparse"
        )
    indices, values = gradient._indices()[0], gradient._values()
    # Autograd forgets that a gradient is coalesced; to look costs a tenth of doing it again.
    if not bool((indices[1:] > indices[:-1]).all()):
        gradient = gradient.coalesce()
        indices, values = gradient.indices()[0], gradient.values()
    finite = values.isfinite()
    if not finite.all():
        bad = int(finite.logical_not().nonzero()[0])
        raise DivergenceError(
            f"the gradient of feature id {int(indices[bad])} is {float(values[bad])}: lower the "
            "learning rate, and check the feature values and gains of the k-best lists"
        )
    return indices, values


def check_vectors(parameters: Iterable[Tensor], optimizer: str) -> None:
    """Raise ValueError unless all parameters are vectors of floating-point numbers."""
    for parameter in parameters:
        if parameter.dim() != 1 or not parameter.is_floating_point():
            raise ValueError(
                f"{optimizer} takes one-dimensional floating-point parameters, not one of shape "
                f"{tuple(parameter.shape)} and {parameter.dtype}"
            )


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
