"""A bound of the time that the search for a translation may take."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from torchtune_smt.core.arrays import UInt8


class OutOfTimeError(Exception):
    """A search was stopped."""


@contextmanager
def deadline(seconds: float | None) -> Iterator[UInt8]:
    """Give a search, which has to look at it, what says that it is to stop (uint8 [1]).

    Parameters
    ----------
    seconds : float, optional
        From now on; never by default. More than `threading.TIMEOUT_MAX`, which is years, is that.
    """
    stop = np.zeros(1, np.uint8)
    if seconds is None:
        yield stop
        return
    # Kernels do not hold the GIL, so the timer's thread can run.
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop.fill, [1])
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
