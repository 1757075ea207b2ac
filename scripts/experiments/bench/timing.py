"""Times for benchmarks: of processors, what is compared in turn, as medians with their spread.

The clock on the wall also counts what other programs do meanwhile: on a busy machine the shorter of
two jobs wins. It is for what does not compute here: GPUs, files, and the ends of other processes.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

cpu = time.process_time
of_thread = time.thread_time
wall = time.perf_counter


class Spread(NamedTuple):
    """Seconds of several tries."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Return what several tries say."""
        return cls(statistics.median(seconds), min(seconds), max(seconds))

    def said(self, unit: float = 1e3, digits: int = 2) -> str:
        """Return the median and what lies around it, in so many parts of a second."""
        low, high = (f"{unit * x:.{digits}f}" for x in self[1:])
        return f"{unit * self.median:.{digits}f} ({low} to {high})"


def seconds(work: Callable[[], object], device: str = "cpu") -> float:
    """Return what one call takes: CPU time of all threads, on a GPU the time until it is done."""
    if device == "cpu":
        begin = cpu()
        work()
        return cpu() - begin
    from torch.cuda import synchronize

    synchronize()
    begin = wall()
    work()
    synchronize()
    return wall() - begin


def in_turn(
    works: Mapping[str, Callable[[], object]], times: int = 5, device: str = "cpu"
) -> dict[str, Spread]:
    """Return what calls take that follow each other, each once before as well, uncounted."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(times + 1):
        for name, work in works.items():
            took = seconds(work, device)
            if number:
                found[name].append(took)
    return {name: Spread.of(each) for name, each in found.items()}


def user() -> float:
    """Return the user CPU time of this process since it began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def megabytes() -> float:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(command: Sequence[object], patience: float = 0, **options: Any) -> dict[str, Any]:
    """Run a process of one thread; return the JSON that it writes, with its CPU times.

    patience: seconds to wait for a quiet machine before.
    """
    give_up = time.monotonic() + patience
    while os.getloadavg()[0] > (os.cpu_count() or 1) - 0.5 and time.monotonic() < give_up:
        time.sleep(1)
    load = os.getloadavg()[0]
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = [str(word) for word in command]
    done = subprocess.run(
        arguments, env=os.environ | one, check=True, stdout=subprocess.PIPE, **options
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = json.loads(done.stdout) if done.stdout.startswith(b"{") else {}
    times = {"user": after.ru_utime - before.ru_utime, "system": after.ru_stime - before.ru_stime}
    return {**figures, **times, "load": load}


def middle(runs: Sequence[dict[str, Any]], key: str = "user") -> dict[str, Any]:
    """Return the run whose time is the median one, the longer of two."""
    return sorted(runs, key=lambda run: run[key])[len(runs) // 2]


def peer(name: str) -> ModuleType | None:
    """Return a module to compare with, or None, and say why."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # A peer may fail in any way as it is imported.
        print(f"{name} is not compared: {type(error).__name__}: {error}", flush=True)
        return None
