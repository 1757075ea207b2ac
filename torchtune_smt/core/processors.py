"""How many processors there are to compute on."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use, or all, where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
