"""Checks of arguments."""

from __future__ import annotations

from numbers import Integral
from typing import Any


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless the argument of some name is a whole number that is large enough.

    A float is none, as compiled code needs an integer; nor is a truth value.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, at least {least}, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
