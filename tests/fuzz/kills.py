"""Kills runs at random moments: what is resumed must end as if nothing had happened.

``python tests/fuzz/kills.py [KIND...] [--kills 100]``; ``--case N`` does one case again. A case is
a run, or a build of a model, that is killed (SIGKILL's effect, at a random moment of its CPU time)
or stopped (Ctrl-C, SIGTERM), taken up again, killed again, and at last left to finish. Then
weights, translations, groups, or the model, must be those of an undisturbed run to the last bit,
and nothing else may be left. One process imports everything and loads all kernels; each run is a
fork of it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tqdm import tqdm

from torchtune_smt.cli import main as command
from torchtune_smt.core.leftovers import restored
from torchtune_smt.core.resources import example_folder

_MOST_KILLS: Final = 8
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)

_DATA: Final = [
    *["data.train=[train.de,train.en]", "data.dev=[dev.de,dev.en.0,dev.en.1]", "data.test=null"],
    *["model.order=2", "model.iterations=2"],
]
_TUNE: Final = [
    *_DATA,
    *["model.folder=model", "model.folds=2", "threads=1", "decoder.k=10", "decoder.pop_limit=5"],
]
_BATCH: Final = ["tuner.iterations=4", "tuner.patience=null"]
TUNERS: Final[dict[str, list[str]]] = {
    "online": ["features=rule_id", "tuner.epochs=4", "tuner.batch_size=5"],
    "pro": [*_BATCH, "features=rule_id"],
    "mira": [*_BATCH, "features=rule_id"],
    "mert": [*_BATCH, "features=dense"],
    "stochastic": [*_BATCH, "features=rule_id", "tuner.solver.passes=3"],
    "grouping": [
        *["features=rule_id", "tuner.sentences=20", "tuner.passes=3", "tuner.iterations=3"],
        *["tuner.dev.iterations=2", "regularizer.lambda1=1e-4", "regularizer.lambda2=1e-7"],
    ],
}
# These save in the middle of an epoch, or of an iteration, too.
_OFTEN: Final = ("online", "grouping")
KINDS: Final = (*TUNERS, "build")
_RESULTS: Final = ("weights.txt.gz", "dev.translations.txt", "groups.tsv.gz")


@dataclass
class Tally:
    """What became of the cases of a kind."""

    cases: int = 0
    kills: int = 0
    stops: int = 0
    bad: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.cases} cases, {self.kills} kills, {self.stops} stops, {len(self.bad)} bad"


def call(arguments: Sequence[str]) -> int:
    """Run a command in this process; return its exit code."""
    try:
        return command(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0


def fork(
    arguments: Sequence[str],
    log: Path,
    moment: float | None = None,
    stop: signal.Signals | None = None,
) -> tuple[int, float]:
    """Run a command in a fork; return how it ended and the seconds of CPU time it took.

    Parameters
    ----------
    moment : float, optional
        When it is killed, in seconds of its CPU time, which does not depend on what else runs.
    stop : signal, optional
        Sent then instead of killing it.

    Returns
    -------
    int
        Its exit code, or the negative number of the signal that killed it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            if moment is not None:
                if stop is None:
                    # As SIGKILL: nothing in the process learns of it.
                    signal.signal(signal.SIGPROF, signal.SIG_DFL)
                else:
                    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), stop))
                signal.setitimer(signal.ITIMER_PROF, moment)
            code = call(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def parts(folder: Path) -> set[Path]:
    """Return what is half-written, or being replaced, below a folder."""
    return {path for end in ("part", "old") for path in folder.rglob(f".*.{end}")}


class Kills:
    """The cases of one kind, in a folder of their own.

    Parameters
    ----------
    kind : str
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._log = Path(f"{kind}.log")
        if kind == "build":
            self._command = ["build-model", *_DATA, "model.folds=2"]
            self._check(call([*self._command, "model.order=3", "model.folder=old"]), "old")
            self._old = tree(Path("old"))
            self._where = "model.folder={}/model"
        else:
            minutes = ["tuner.checkpoint_minutes=0"] if kind in _OFTEN else []
            self._command = ["train", *_TUNE, f"tuner={kind}", *TUNERS[kind], *minutes]
            self._where = "hydra.run.dir={}"
        self._check(call(self._arguments(f"{kind}-whole")), "whole")
        self._expected = self._results(Path(f"{kind}-whole"))
        code, self._seconds = fork(self._arguments(f"{kind}-forked"), self._log)
        self._check(code, "forked")
        if self._results(Path(f"{kind}-forked")) != self._expected:
            raise SystemExit(f"{kind}: two undisturbed runs differ")

    def case(self, number: int, tally: Tally) -> None:
        """Do a case, and add what became of it."""
        draw = random.Random(f"{self.kind} {number}")
        folder = Path(f"{self.kind}-{number}")
        folder.mkdir()
        if self.kind == "build" and number % 2:
            shutil.copytree("old", folder / "model")
        said = []
        for turn in range(_MOST_KILLS + 1):
            moment = draw.uniform(0, self._seconds) if turn < _MOST_KILLS else None
            stop = draw.choice(_STOPS) if draw.random() < 0.25 else None
            again = (folder / "checkpoint.pt").exists() or (folder / "weights.txt.gz").exists()
            arguments = ["train", f"resume={folder}"] if again else self._arguments(str(folder))
            self._log.unlink(missing_ok=True)
            before = parts(folder)
            code, _ = fork(arguments, self._log, moment, stop)
            text = self._log.read_text(errors="replace")
            said.append(f"{code} after {moment}")
            if code == -signal.SIGPROF:
                tally.kills += 1
                bad = self._after_kill(folder, number)
            elif stop is not None and code == 128 + stop:
                tally.stops += 1
                bad = self._after_stop(folder, text, before)
            elif code == 0 or (again and "this run is finished" in text):
                bad = self._after_end(folder)
                break
            else:
                bad = text
            if bad:
                break
        if bad:
            tally.bad.append(f"{self.kind} {number} ({', '.join(said)}): {bad}")
        else:
            shutil.rmtree(folder)
        tally.cases += 1

    def _arguments(self, folder: str) -> list[str]:
        return [*self._command, self._where.format(folder)]

    def _check(self, code: int, what: str) -> None:
        if code:
            raise SystemExit(f"{self.kind} {what}: exit code {code}")

    def _results(self, folder: Path) -> dict[str, bytes]:
        if self.kind == "build":
            return tree(folder / "model")
        found = tree(folder)
        return {name: found[name] for name in _RESULTS if name in found}

    def _after_kill(self, folder: Path, number: int) -> str:
        """Return what is wrong, if anything: there is one whole model, or none."""
        if self.kind != "build":
            return ""
        there = restored(folder / "model").exists()
        if number % 2 and not there:
            return "the old model is lost"
        if there and self._results(folder) not in (self._expected, self._old):
            return "the model is neither the old nor the new one"
        return ""

    def _after_stop(self, folder: Path, text: str, before: set[Path]) -> str:
        last = text.splitlines()[-1:]
        line = f"torchtune-smt {self._command[0]}: stopped"
        if "Traceback" in text or not last or not last[0].startswith(line):
            return text
        if (folder / "checkpoint.pt").exists() and f"resume={folder}" not in last[0]:
            return f"does not say how to go on: {last[0]}"
        # What a kill has left may be there still, if it had not come so far.
        return f"left: {more}" if (more := parts(folder) - before) else ""

    def _after_end(self, folder: Path) -> str:
        results = self._results(folder)
        different = [n for n in self._expected if results.get(n) != self._expected[n]]
        if different or results.keys() != self._expected.keys():
            return f"other results: {different}"
        if (folder / "lists").exists():
            return "lists are left"
        return f"left: {left}" if (left := parts(folder)) else ""


def prepare() -> None:
    """Write small data to the current folder."""
    for name, lines in [("train", 200), ("dev", 20)]:
        for path in example_folder().glob(f"{name}.*"):
            text = path.read_text("utf-8").splitlines(keepends=True)
            Path(path.name).write_text("".join(text[:lines]), "utf-8")


def main() -> int:
    """Run cases; return 1 if one of them was bad."""
    parser = argparse.ArgumentParser(description="Kill, resume, compare.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--kills", type=int, default=100, help="of each kind (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--case", type=int, help="do this case alone")
    options = parser.parse_args()
    for kind in options.kinds:
        if kind not in KINDS:
            parser.error(f"there is no kind {kind}; there are {', '.join(KINDS)}")
    # Before numpy and torch are imported: a process with threads cannot be forked.
    for name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    bad = 0
    # A shell lets what it runs in the background ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.disable()
    # tqdm's own lock is shared by all forks, and one that is killed may hold it; the thread that
    # watches over bars may hold it while a fork is made.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        prepare()
        for kind in options.kinds or KINDS:
            with open(os.devnull, "w") as nowhere:
                with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                    kills = Kills(kind)
            tally = Tally()
            number = options.first if options.case is None else options.case
            while tally.kills < options.kills:
                kills.case(number, tally)
                number += 1
                if options.case is not None:
                    break
            print(f"{kind}: {tally}", *tally.bad, sep="\n", flush=True)
            bad += len(tally.bad)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
