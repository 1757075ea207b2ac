"""What classes return that may be a user's own: whether it is what it must be, and what is said."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError


def described(value: Any) -> str:
    """Return what a message says of a value: its type, and of an array its numbers and shape."""
    name = type(value).__name__
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        return name
    return f"{name} of {getattr(value, 'dtype', 'no dtype')} and shape {tuple(shape)}"


def checked_numbers(value: Any, shape: tuple[int, ...], must: str, kinds: str = "iuf") -> Float64:
    """Return an array of numbers as float64, itself where it is that.

    Parameters
    ----------
    value : object
    shape : tuple of int
        That it must have.
    must : str
        How the message begins: who must do what.
    kinds : str
        The letters of dtypes (`numpy.dtype.kind`) that are numbers here.

    Raises
    ------
    InputError
        It is something else.
    """
    if isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind in kinds:
        return value.astype(np.float64, copy=False)
    raise InputError(f"{must} an array of shape {shape}, and returned {described(value)}")
