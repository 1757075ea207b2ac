"""Whether devices, seeds and what a user's classes return are what they must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError

DEVICE: Final = one_of("cpu", "cuda")


def check_device(device: str) -> None:
    """Raise ValueError unless a device is there: ``cpu`` or ``cuda``."""
    DEVICE.check("device", device)
    # It takes long to import.
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, and torch finds no CUDA device; set device=cpu")


def described(value: Any) -> str:
    """Return what a message says of a value: its type, and of an array its numbers and shape."""
    name = type(value).__name__
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        return name
    return f"{name} of {getattr(value, 'dtype', 'no dtype')} and shape {tuple(shape)}"


def checked_numbers(value: Any, shape: tuple[int, ...], must: str, kinds: str = "iuf") -> Float64:
    """Return an array of numbers as float64; raise InputError if it is something else.

    must: how the message begins: who must do what.
    kinds: the letters of dtypes (`numpy.dtype.kind`) that are numbers here.
    """
    if isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind in kinds:
        return value.astype(np.float64, copy=False)
    raise InputError(f"{must} an array of shape {shape}, and returned {described(value)}")


def stream_seed(parts: Sequence[int]) -> Int64:
    """Return the integers that name a random stream as an array; ValueError if one has no room."""
    try:
        return np.array(parts, np.int64)
    except OverflowError:
        raise ValueError(f"seeds must be below 2^63, not {max(parts, key=abs)}") from None
