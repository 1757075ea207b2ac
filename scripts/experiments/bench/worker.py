"""What a worker of shards loads: time until it computes, its memory, and the time of an epoch.

Tunes with train.py on one shard of the training data, in one worker. Opening is the time from the
begin of tuning to that of the first epoch in the worker: the start of its process, imports, and the
model. Own memory is what the worker shares with nobody (Anonymous in /proc); of the grammar's file,
which all workers share, it has touched so much. The model is built before if need be.

    python scripts/experiments/bench/worker.py [--data example] [--sentences 200] [OVERRIDE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]


def watch(path: str) -> Any:
    """Return the callback of a run that writes down what its worker does and holds."""
    from torchtune_smt.runs.rounds import Callback, Rounds
    from torchtune_smt.tuners.base import Report

    class Watch(Callback):
        def on_start(self, run: Rounds) -> None:
            self.begin = time.time()
            Path(path).write_text("")

        def on_report(self, report: Report, run: Rounds) -> None:
            if report.kind != "part":
                return
            opened = report.numbers["parallel/begin"] - self.begin
            line = [
                opened,
                report.numbers["parallel/seconds"],
                *map(sum, zip(*memory(), strict=True)),
            ]
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")

    return Watch()


def memory() -> Iterator[tuple[float, float]]:
    """Yield of each process that this one has opened: its own MiB, and those of the grammar."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != os.getpid() or b"spawn_main" not in (folder / "cmdline").read_bytes():
                continue
            lines = (folder / "smaps").read_text().splitlines()
        except OSError:
            continue
        own = grammar = 0
        of_grammar = False
        for line in lines:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                of_grammar = line.endswith("/grammar")
            elif line.startswith("Anonymous:"):
                own += int(line.split()[1])
            elif of_grammar and line.startswith("Rss:"):
                grammar += int(line.split()[1])
        yield own / 1024, grammar / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="example")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "watched.jsonl"
        command = [
            *[sys.executable, str(REPOSITORY / "train.py"), f"data={given.data}"],
            *["tuner.tune_on=train", f"tuner.sentences={given.sentences}"],
            *[f"tuner.epochs={given.epochs}", "tuner.result=last", "data.test=null"],
            *["parallel=itermix", "parallel.shards=1", "engine.workers=1", "threads=1"],
            *[f"hydra.run.dir={name}/run", *given.overrides],
            f"callbacks=[{{_target_: worker.watch, path: {path}}}]",
        ]
        places = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
        environment = os.environ | {"PYTHONPATH": places}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given.sentences} sentences")
    print(f"a worker was open after {lines[0][0]:.1f} s")
    print(f"{'epoch':>5}{'seconds':>10}{'ms a sentence':>15}{'own MiB':>10}{'of grammar':>12}")
    for epoch, (_, seconds, own, grammar) in enumerate(lines, 1):
        each = 1000 * seconds / given.sentences
        print(f"{epoch:5}{seconds:10.1f}{each:15.1f}{own:10.0f}{grammar:12.0f}")


if __name__ == "__main__":
    main()
