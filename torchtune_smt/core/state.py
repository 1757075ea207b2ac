"""What is saved of a run that goes on: trees of numbers, strings and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchtune_smt.core.archive import DAMAGED
from torchtune_smt.core.arrays import Int64

Packed = tuple[Any, dict[str, NDArray[Any]]]
"""A tree as JSON, and the arrays that it names."""


def packed(tree: Any, longest: int = 0) -> Packed:
    """Return a tree as JSON, and its tensors as arrays with the names of their places.

    Of a vector that has few runs of equal numbers, one number of each run is kept. Most weights
    are 0, and most gradients of a feature, as few of the features that are met are in any pair.

    tree: None, a number, a string, a tensor (a sparse one has one dimension), or a dict or sequence
        of trees; keys are strings and integers. Sequences come back as lists, tensors on the CPU.
        TypeError says at which place there is something else.
    longest: a vector with more numbers is kept as it is.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def pack(value: Any, place: str) -> Any:
        if torch.is_tensor(value) and value.is_sparse:
            value = value.coalesce()
            parts = [value.indices(), value.values(), value.numel()]
            return {"sparse": pack(parts, place)}
        if torch.is_tensor(value):
            array = value.detach().cpu().numpy()
            begin = _run_begins(array) if array.ndim == 1 and 0 < array.size <= longest else None
            if begin is None:
                arrays[place] = array
                return {"tensor": place}
            arrays[f"{place}/begin"], arrays[f"{place}/value"] = begin, array[begin]
            return {"runs": [place, array.size]}
        if isinstance(value, dict):
            for key in value:
                if type(key) not in (int, str):
                    raise TypeError(f"a {type(key).__name__} cannot be a key{_of(place)}")
            return {"dict": [[key, pack(v, f"{place}/{key}")] for key, v in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [pack(v, f"{place}/{i}") for i, v in enumerate(value)]}
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"a {type(value).__name__} cannot be saved{_of(place)}")

    return pack(tree, ""), arrays


def _of(place: str) -> str:
    return f", as {place[1:]}" if place else ""


def unpacked(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return what `packed` was given."""
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return torch.from_numpy(arrays[value])
    if kind == "runs":
        place, length = value
        times = np.diff(arrays[f"{place}/begin"], append=length)
        return torch.from_numpy(np.repeat(arrays[f"{place}/value"], times))
    if kind == "sparse":
        indices, values, length = unpacked(value, arrays)
        return torch.sparse_coo_tensor(
            indices, values, (length,), is_coalesced=True, check_invariants=True
        )
    if kind == "list":
        return [unpacked(part, arrays) for part in value]
    return {key: unpacked(part, arrays) for key, part in value}


def _run_begins(array: NDArray[Any]) -> Int64 | None:
    """Return where the runs of equal numbers in a vector begin; None if that saves nothing.

    Equal are those with the same bits: -0.0 is not 0.0, and a NaN is itself.
    """
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    begin = np.flatnonzero(np.concatenate([[True], bits[1:] != bits[:-1]]))
    return begin if begin.size * (begin.itemsize + array.itemsize) < array.nbytes else None


def vector(value: Any, dtype: torch.dtype, longest: int) -> torch.Tensor:
    """Return a vector of finite numbers of one type; raise ValueError if it is none.

    longest: how many it may have.
    """
    if not torch.is_tensor(value) or value.dtype != dtype or value.dim() != 1:
        raise ValueError(DAMAGED)
    if value.numel() > longest or not bool(value.isfinite().all()):
        raise ValueError(DAMAGED)
    return value
