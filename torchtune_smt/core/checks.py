"""Checks of what is read from files of saved states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DAMAGED = "the saved state is damaged"


@contextmanager
def well_formed() -> Iterator[None]:
    """Turn what Python says of a tree that has another form into ValueError."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError):
        raise ValueError(DAMAGED) from None


def whole(value: Any, least: int, most: int = 2**62) -> int:
    """Return an integer that is in a range; raise ValueError if it is not."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(DAMAGED)
    return value


def real(value: Any) -> float:
    """Return a finite number; raise ValueError if it is none."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(DAMAGED)
    return float(value)
