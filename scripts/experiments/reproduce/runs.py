"""Runs of train.py: their commands, how they are taken up again, the time that they took.

A run's folder holds a record beside what train.py writes: its overrides, the checksum of the
weights that it starts from, and when and how long each part of it ran. A run is finished when its
weights file is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.runs.folder import CHECKPOINT, LISTS, NAMES, remove_lists

REPOSITORY = Path(__file__).resolve().parents[3]
WEIGHTS = "weights.txt.gz"
RECORD = "run.json"
LOG = "train.log"
# Shorter runs that choose an option of this one.
SWEEP = "sweep"
# Without it, the lists of a run go when it ends.
KEPT = "tuner.keep_lists=true"
TRANSLATIONS = ".translations.txt"
# The override that says how many iterations a run has at most.
ITERATIONS = "tuner.iterations="
# The override that names the weights that a run starts from.
START = "init.file="


def said_path(path: Path) -> str:
    """Return a path as a run is told it: nothing of the machine, where that can be."""
    return str(path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path)


class Process(Protocol):
    """What is needed of `subprocess.Popen`."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or raise `subprocess.TimeoutExpired`."""
        ...

    def terminate(self) -> None:
        """End the process."""
        ...


Launch = Callable[[Sequence[str], IO[bytes]], Process]
"""Starts a command; its output goes to the file."""


@dataclass(frozen=True)
class Run:
    """A run of train.py: where it writes, and its overrides."""

    folder: Path
    overrides: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether its weights are there."""
        return (self.folder / WEIGHTS).is_file()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped, and can be taken up again."""
        return not self.finished and (self.folder / CHECKPOINT).is_file()

    @property
    def stopped_short(self) -> bool:
        """Whether it is finished, and has kept what it can be made longer from."""
        return self.finished and (self.folder / CHECKPOINT).is_file()

    @property
    def start(self) -> Path | None:
        """The file of the weights that it starts from; None if that is no file."""
        named = [o.removeprefix(START) for o in self.overrides if o.startswith(START)]
        return REPOSITORY / named[-1] if named else None

    @property
    def minutes(self) -> float:
        """Wall-clock time of all parts."""
        return float(sum(part["seconds"] for part in _Record.of(self).parts)) / 60

    @property
    def cpu_minutes(self) -> float:
        """Time on a processor, of all parts."""
        return float(sum(part["cpu"] for part in _Record.of(self).parts)) / 60

    @property
    def dates(self) -> tuple[str, str]:
        """The days of the first begin and the last end."""
        parts = _Record.of(self).parts
        return parts[0]["begin"][:10], parts[-1]["end"][:10]


@dataclass
class _Record:
    """What is kept of a run in its folder."""

    path: Path
    overrides: list[str]
    # Empty: there is no file of them, or none any more.
    start: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run) -> _Record:
        """Return the record of a run, or a new one.

        Raises
        ------
        InputError
            The folder holds a run with other overrides, or one that started from other weights
            than there are now.
        """
        path = run.folder / RECORD
        record = cls(path, list(run.overrides), _start_checksum(run))
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            if found["overrides"] != record.overrides:
                raise InputError(
                    f"was run with {' '.join(found['overrides'])}, and now it would be "
                    f"{' '.join(record.overrides)}; give another --folder, or remove this one",
                    path=run.folder,
                )
            kept = run.finished or run.stopped
            # Records from before have no checksum.
            started = found.get("start", "") if kept else ""
            if run.start and started and record.start and started != record.start:
                raise InputError(
                    f"was started from other weights than {said_path(run.start)} has now; give "
                    "another --folder, or remove this one",
                    path=run.folder,
                )
            record.start = started or record.start
            record.parts = found["parts"]
        return record

    def begin(self) -> None:
        now = _now()
        self.parts.append({"begin": now, "end": now, "seconds": 0.0, "cpu": 0.0})
        self.save()

    def add(self, seconds: float, cpu: float) -> None:
        self.parts[-1]["seconds"] += seconds
        self.parts[-1]["cpu"] += cpu
        self.parts[-1]["end"] = _now()
        self.save()

    def save(self) -> None:
        with atomic_writer(self.path) as file:
            record = {"overrides": self.overrides, "start": self.start, "parts": self.parts}
            json.dump(record, file, indent=1)


def _start_checksum(run: Run) -> str:
    if run.start is None or not run.start.is_file():
        return ""
    return file_checksum(run.start)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def classes(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that name classes: those are not taken from the folder of a run."""
    return [override for override in overrides if "_target_" in override]


def command(run: Run, resuming: Sequence[str] = ()) -> list[str]:
    """Return the command that does a run, or the rest of it, that with some more overrides."""
    if run.stopped:
        given = (*classes(run.overrides), *resuming)
        return [sys.executable, "train.py", f"resume={run.folder}", *given]
    return [sys.executable, "train.py", *run.overrides, f"hydra.run.dir={run.folder}"]


def launch(arguments: Sequence[str], log: IO[bytes]) -> Process:
    """Start a command in the repository, without a shell."""
    return subprocess.Popen(arguments, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)


def complete(
    run: Run, resuming: Sequence[str] = (), *, start: Launch = launch, tick: float = 5.0
) -> bool:
    """Do a run, or what is missing of it; returns whether it is finished.

    Time is written down every `tick` seconds, so that little is lost of a run that is killed.

    Parameters
    ----------
    resuming : sequence of str
        Overrides that are given where the run is taken up again; see `lengthen`.
    """
    if run.finished:
        record = _Record.of(run)
        if record.parts:
            # With the checksum, if it is from before there were any.
            record.save()
        return True
    return _follow([run], command(run, resuming), run.folder, start, tick)


def sweep(
    option: str,
    values: Sequence[float],
    run: Run,
    kept: bool = False,
    *,
    start: Launch = launch,
    tick: float = 5.0,
) -> list[Run]:
    """Do a run for each value of an option, in one multirun of Hydra; returns those finished.

    The folder of a value is named after it and lies in that of `run`. Those that were stopped are
    taken up again one by one first.

    Parameters
    ----------
    kept : bool
        Their lists stay, so that one of them can be made longer (`lengthen`).
    """
    points = sweep_points(option, values, run)
    failed: set[Path] = set()
    for point in points:
        if point.stopped and not complete(point, start=start, tick=tick):
            failed.add(point.folder)
    todo = [p for p in points if not p.finished and p.folder not in failed]
    if todo:
        arguments = [
            *[sys.executable, "train.py", "-m", *run.overrides, *([KEPT] if kept else [])],
            f"{option}={','.join(point.folder.name for point in todo)}",
            f"hydra.sweep.dir={run.folder}",
            f"hydra.sweep.subdir=${{{option}}}",
        ]
        _follow(todo, arguments, run.folder, start, tick)
    return [point for point in points if point.finished]


def lengthen(run: Run, shorter: Run) -> tuple[str, ...]:
    """Let a run go on from a shorter one that is finished and has kept its lists, if it can.

    All that the longer run needs, and its time, goes over; the weights, translations and records of
    the shorter one stay. A run that has begun is left alone, and so is one whose shorter one has
    kept nothing, or has given it away: that is done from its start.

    Returns
    -------
    resuming : tuple of str
        What `complete` needs to be told of a run that was made longer, also later.
    """
    if not (run.finished or run.stopped) and shorter.stopped_short:
        record = _Record.of(run)
        _clear(run)
        run.folder.mkdir(parents=True, exist_ok=True)
        # From here on, neither of them can be taken up, until all is there.
        away = run.folder / f"{CHECKPOINT}.of-shorter"
        (shorter.folder / CHECKPOINT).replace(away)
        for path in [*_files(shorter), shorter.folder / LOG]:
            if path.name in (LISTS, NAMES):
                path.rename(run.folder / path.name)
            elif path.is_dir():
                shutil.copytree(path, run.folder / path.name)
            elif path.name != WEIGHTS and not path.name.endswith(TRANSLATIONS):
                shutil.copyfile(path, run.folder / path.name)
        record.parts = _Record.of(shorter).parts
        record.save()
        away.rename(run.folder / CHECKPOINT)
    return (*_iterations(run), KEPT.replace("true", "false"))


def retarget(run: Run) -> tuple[str, ...]:
    """Let a run that was stopped go on to another number of iterations, if nothing else differs.

    Returns
    -------
    resuming : tuple of str
        What `complete` needs to be told of it, also later.
    """
    path = run.folder / RECORD
    if not run.finished and path.is_file():
        record = json.loads(path.read_text("utf-8"))
        before, now = record["overrides"], list(run.overrides)
        if before != now and _but_iterations(before) == _but_iterations(now):
            record["overrides"] = now
            with atomic_writer(path) as file:
                json.dump(record, file, indent=1)
    return _iterations(run)


def _iterations(run: Run) -> tuple[str, ...]:
    """Return the override that says how many iterations a run has; none if there is none."""
    return tuple(o for o in run.overrides if o.startswith(ITERATIONS))[-1:]


def _but_iterations(overrides: Sequence[str]) -> list[str]:
    return [override for override in overrides if not override.startswith(ITERATIONS)]


def drop_kept(run: Run) -> None:
    """Remove what a finished run could be made longer from."""
    if run.finished:
        for name in (CHECKPOINT, NAMES):
            (run.folder / name).unlink(missing_ok=True)
        remove_lists(run.folder)


def sweep_points(option: str, values: Sequence[float], run: Run) -> list[Run]:
    """Return the runs of a sweep."""
    return [
        Run(run.folder / str(float(value)), (*run.overrides, f"{option}={float(value)}"))
        for value in values
    ]


def _follow(
    runs: Sequence[Run], arguments: Sequence[str], folder: Path, start: Launch, tick: float
) -> bool:
    """Run a command that does some runs in turn, and write down the time of each."""
    records = {run.folder: _Record.of(run) for run in runs}
    for run in runs:
        if not run.stopped:
            _clear(run)
            records[run.folder].parts = []
    folder.mkdir(parents=True, exist_ok=True)
    current = None
    with (folder / LOG).open("ab") as log:
        last, used, before = time.monotonic(), 0.0, _children_seconds()
        process = start(arguments, log)
        try:
            code = None
            while code is None:
                if (now := _current(runs)) is not current:
                    current = now
                    records[current.folder].begin()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=tick)
                instant = time.monotonic()
                cpu = _cpu_seconds(process.pid) if code is None else _children_seconds() - before
                total = max(used, cpu)
                records[current.folder].add(instant - last, total - used)
                last, used = instant, total
        finally:
            if code is None:
                process.terminate()
                process.wait()
                if current is not None:
                    # With that of its workers, which is known when they have ended.
                    total = max(used, _children_seconds() - before)
                    records[current.folder].add(time.monotonic() - last, total - used)
    for run in runs:
        if run.finished and not records[run.folder].parts:
            # It took less than a tick.
            records[run.folder].begin()
    return code == 0 and all(run.finished for run in runs)


def _current(runs: Sequence[Run]) -> Run:
    """Return the run that is at work: one that fails is followed by the next, too."""
    begun = [i for i, run in enumerate(runs) if run.finished or _files(run)]
    last = begun[-1] if begun else 0
    if runs[last].finished and last + 1 < len(runs):
        last += 1
    return runs[last]


def _cpu_seconds(pid: int) -> float:
    """Return the time on a processor of a process that runs; 0 where Linux does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    """Return the time on a processor of all processes that this one has started and seen end."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _files(run: Run) -> list[Path]:
    """Return what a run itself has written."""
    if not run.folder.is_dir():
        return []
    return [path for path in run.folder.iterdir() if path.name not in (RECORD, LOG, SWEEP)]


def _clear(run: Run) -> None:
    """Remove what an earlier attempt left that cannot be taken up again."""
    for path in _files(run):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


class Log(NamedTuple):
    """What a finished run wrote down.

    Attributes
    ----------
    iterations, best : int
        Iterations until it stopped, and the one whose weights were kept.
    dev : float
        BLEU of these weights on dev.
    active : int
        Weights that are not 0.
    """

    iterations: int
    best: int
    dev: float
    active: int


def read_log(folder: Path) -> Log:
    """Return what a finished run wrote down."""
    entries = [json.loads(line) for line in read_lines(folder / "metrics.jsonl")]
    dev = {entry["step"]: entry["bleu/dev"] for entry in entries if "bleu/dev" in entry}
    last = {name: value for entry in entries for name, value in entry.items()}
    _, values = read_weights(folder / WEIGHTS)
    active = int(sum(value != 0 for value in values))
    best = next(last[name] for name in ("best_iteration", "best_epoch") if name in last)
    return Log(len(dev) - 1, int(best), last["bleu/dev_tuned"], active)
