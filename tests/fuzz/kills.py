"""Kills runs at random moments: what is resumed must end as if nothing had happened.

``python tests/fuzz/kills.py [KIND...] [--kills 100]``; ``--case N`` does one case again. A case is
a run, or a build of a model, that is killed (SIGKILL's effect, at a random moment) or stopped
(Ctrl-C, SIGTERM), taken up again, killed again, and at last left to finish. Then weights,
translations, groups, or the model, must be those of an undisturbed run to the last bit, and nothing
else may be left. Where workers compute, none may outlive the run, and in some cases one of them is
killed instead: the run must finish. One process imports everything and loads all kernels; each run
is a fork of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from forks import Blow, call, fork
from kill_kinds import KINDS
from tqdm import tqdm

from torchtune_smt.core.leftovers import restored
from torchtune_smt.core.resources import example_folder

_MOST_KILLS: Final = 8
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)
_RESULTS: Final = ("weights.txt.gz", "dev.translations.txt", "groups.tsv.gz")


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


def steps(folder: Path) -> list[int]:
    """Return the steps that a run has logged, in sentences."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    # A kill may have cut off the last one.
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


class Kills:
    """The cases of one kind, in a folder of their own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._how = KINDS[kind]
        self._builds = self._how.command[0] == "build-model"
        self._log = Path(f"{kind}.log")
        if self._builds:
            code = call([*self._how.command, "model.order=3", "model.folder=old"])
            self._check(code, "old")
            self._old = tree(Path("old"))
        whole, forked = Path(f"{kind}-whole"), Path(f"{kind}-forked")
        self._check(call(self._arguments(whole)), "whole")
        self._expected = self._results(whole)
        self._steps = steps(whole)
        end = fork(self._arguments(forked), self._log)
        self._check(end.code, "forked")
        self._seconds = end.wall if self._how.workers else end.cpu
        if bad := self._after_end(forked):
            raise SystemExit(f"{kind}: of two undisturbed runs, one has {bad}")

    def case(self, number: int, tally: Counter[str]) -> str:
        """Do a case, and count what became of it; return what is wrong, if anything."""
        draw = random.Random(f"{self.kind} {number}")
        folder = Path(f"{self.kind}-{number}")
        folder.mkdir()
        if self._builds and number % 2:
            shutil.copytree("old", folder / "model")
        said = []
        for turn in range(_MOST_KILLS + 1):
            blow = self._blow(draw, folder) if turn < _MOST_KILLS else None
            again = (folder / "checkpoint.pt").exists() or (folder / "weights.txt.gz").exists()
            arguments = ["train", f"resume={folder}"] if again else self._arguments(folder)
            self._log.unlink(missing_ok=True)
            before, taken = parts(folder), steps(folder)
            end = fork(arguments, self._log, blow)
            text = self._log.read_text(errors="replace")
            said.append(f"{blow}: {end.code}")
            tally["workers lost"] += end.lost
            finished = False
            if end.killed:
                tally["kills"] += 1
                bad = self._after_kill(folder, number)
            elif blow is not None and blow.stop is not None and end.code == 128 + blow.stop:
                tally["stops"] += 1
                bad = self._after_stop(folder, text, before)
            elif end.code == 0 or (again and "this run is finished" in text):
                finished = True
                bad = self._after_end(folder)
            else:
                bad = text
            bad = bad or self._resumed_too_early(text, taken)
            if end.left:
                bad = f"processes live on: {end.left}"
            if bad or finished:
                break
        tally["cases"] += 1
        if bad:
            return f"{self.kind} {number} ({'; '.join(said)}): {bad}"
        shutil.rmtree(folder)
        return ""

    def _blow(self, draw: random.Random, folder: Path) -> Blow:
        what = draw.random()
        stop = draw.choice(_STOPS) if what < 0.25 else None
        if not self._how.workers:
            return Blow(draw.uniform(0, self._seconds), stop)
        # Any moment of the opening, or about that when one of the next lines is logged.
        lines = len(steps(folder)) + draw.randrange(len(self._steps) // 2)
        moment = draw.uniform(0, 0.1)
        if draw.random() < 0.25:
            lines, moment = 0, draw.uniform(0, self._seconds)
        worker = draw if what > 0.7 else None
        return Blow(moment, stop, lines, folder / "metrics.jsonl", worker)

    def _arguments(self, folder: Path) -> list[str]:
        where = f"model.folder={folder}/model" if self._builds else f"hydra.run.dir={folder}"
        return [*self._how.command, where]

    def _check(self, code: int, what: str) -> None:
        if code:
            raise SystemExit(f"{self.kind} {what}: exit code {code}")

    def _results(self, folder: Path) -> dict[str, bytes]:
        if self._builds:
            return tree(folder / "model")
        found = tree(folder)
        return {name: found[name] for name in _RESULTS if name in found}

    def _resumed_too_early(self, text: str, taken: list[int]) -> str:
        """Return what is wrong where a run goes on that had logged some steps."""
        found = re.search(r"^resuming in .*, after ([\d,]+) sentences$", text, re.MULTILINE)
        if found is None or "tuner=online" not in self._how.command:
            return ""
        # A step is kept after it is logged.
        kept = sorted(set(taken))[:-1]
        if kept and int(found[1].replace(",", "")) < kept[-1]:
            return f"{found[0]}, and {kept[-1]} were kept"
        return ""

    def _after_kill(self, folder: Path, number: int) -> str:
        """Return what is wrong, if anything: there is one whole model, or none."""
        if not self._builds:
            return ""
        there = restored(folder / "model").exists()
        if number % 2 and not there:
            return "the old model is lost"
        if there and self._results(folder) not in (self._expected, self._old):
            return "the model is neither the old nor the new one"
        return ""

    def _after_stop(self, folder: Path, text: str, before: set[Path]) -> str:
        last = text.splitlines()[-1:]
        line = f"torchtune-smt {self._how.command[0]}: stopped"
        if "Traceback" in text or not last or not last[0].startswith(line):
            return text
        if (folder / "checkpoint.pt").exists() and f"resume={folder}" not in last[0]:
            return f"does not say how to go on: {last[0]}"
        # What a kill has left may be there still, if it had not come so far.
        return f"left: {more}" if (more := parts(folder) - before) else ""

    def _after_end(self, folder: Path) -> str:
        results = self._results(folder)
        if results.keys() != self._expected.keys():
            return f"other results: {sorted(results)}"
        different = [n for n in self._expected if results[n] != self._expected[n]]
        if different and self._how.exact:
            return f"other results: {different}"
        if steps(folder) != self._steps:
            return f"another log: {steps(folder)}, not {self._steps}"
        if any((folder / "lists").glob("*")) or (folder / "checkpoint.steps").exists():
            return "lists or steps are left"
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
    parser.add_argument(
        "--kills",
        type=int,
        default=100,
        help="of each kind, a third where workers compute (%(default)s)",
    )
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
            tally, wrong = Counter[str](cases=0, kills=0, stops=0), list[str]()
            number = options.first if options.case is None else options.case
            wanted = max(1, options.kills // (3 if KINDS[kind].workers else 1))
            while tally["kills"] + tally["workers lost"] < wanted:
                wrong += filter(None, [kills.case(number, tally)])
                number += 1
                if options.case is not None:
                    break
            counts = ", ".join(f"{count} {what}" for what, count in tally.items())
            print(f"{kind}: {counts}, {len(wrong)} bad", *wrong, sep="\n", flush=True)
            bad += len(wrong)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
