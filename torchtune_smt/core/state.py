"""What is saved of a run that goes on: trees of numbers, strings and tensors, and their checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchtune_smt.core.archive import DAMAGED, well_formed, whole
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
    longest: a vector with more numbers is kept as it is; `unpacked` makes none that is longer from
        runs.
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


def unpacked(tree: Any, arrays: dict[str, NDArray[Any]], longest: int = 0) -> Any:
    """Return what `packed` was given, with the same `longest`.

    Raises ValueError: it has given nothing of the kind.
    """
    try:
        with well_formed():
            return _unpacked(tree, arrays, longest)
    except ValueError:
        raise ValueError(DAMAGED) from None


def _unpacked(tree: Any, arrays: dict[str, NDArray[Any]], longest: int) -> Any:
    if isinstance(tree, dict):
        ((kind, value),) = tree.items()
        if kind == "tensor":
            return torch.from_numpy(arrays[value])
        if kind == "runs":
            place, length = value
            parts = arrays[f"{place}/begin"], arrays[f"{place}/value"]
            return torch.from_numpy(_repeated(*parts, whole(length, 1, longest)))
        if kind == "sparse":
            return _sparse(*_unpacked(value, arrays, longest))
        if kind == "list":
            return [_unpacked(part, arrays, longest) for part in value]
        if kind == "dict" and all(type(key) in (int, str) for key, _ in value):
            return {key: _unpacked(part, arrays, longest) for key, part in value}
    elif tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError


def _run_begins(array: NDArray[Any]) -> Int64 | None:
    """Return where the runs of equal numbers in a vector begin; None if that saves nothing.

    Equal are those with the same bits: -0.0 is not 0.0, and a NaN is itself.
    """
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    begin = np.flatnonzero(np.concatenate([[True], bits[1:] != bits[:-1]]))
    return begin if begin.size * (begin.itemsize + array.itemsize) < array.nbytes else None


def _repeated(begin: NDArray[Any], value: NDArray[Any], length: int) -> NDArray[Any]:
    ends = np.append(begin[1:], length)
    if begin.dtype != np.int64 or begin.shape != value.shape or begin.ndim != 1 or begin[0] != 0:
        raise ValueError(DAMAGED)
    if not (begin < ends).all():
        raise ValueError(DAMAGED)
    return np.repeat(value, ends - begin)


def _sparse(indices: Any, values: Any, length: Any) -> torch.Tensor:
    """Return a sparse vector whose parts come from a file."""
    values = vector(values, values.dtype, whole(length, 0))
    row = vector(indices[0], torch.int64, length)
    ascends = bool((row[1:] > row[:-1]).all())
    if indices.shape != (1, values.numel()) or not ascends:
        raise ValueError(DAMAGED)
    if row.numel() and not 0 <= int(row[0]) <= int(row[-1]) < length:
        raise ValueError(DAMAGED)
    return torch.sparse_coo_tensor(
        indices, values, (length,), is_coalesced=True, check_invariants=False
    )


def vector(value: Any, dtype: torch.dtype, longest: int) -> torch.Tensor:
    """Return a vector of finite numbers of one type; raise ValueError if it is none.

    longest: how many it may have.
    """
    if not torch.is_tensor(value) or value.dtype != dtype or value.dim() != 1:
        raise ValueError(DAMAGED)
    if value.numel() > longest or not bool(value.isfinite().all()):
        raise ValueError(DAMAGED)
    return value
