"""Throughput of parallel strategies against one worker with one thread; what travels.

Tunes on training sentences of a corpus with train.py, each strategy in turn, and takes the time of
the epochs after the first, without the evaluation of dev. The share of the master is the processor
time of the thread that steps or mixes. Milliseconds of processors, of all threads and workers, say
what a strategy computes more than another one, also where others use the machine. What travels is
weighed with weights of real feature names.

The limit is what as many runs of one worker each, started together, get done: cores share caches
and the way to memory.

    python scripts/experiments/bench/parallel.py [OVERRIDE ...] [--data example] [--sentences 1200]
        [--workers 2] [--epochs 3] [--only serial stale]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from shards import cpu_of_workers
from timing import cpu, of_thread, wall

REPOSITORY = Path(__file__).resolve().parents[3]
SHARDS_A_WORKER = 2


def clock(path: str) -> Any:
    """Return the callback of a run that writes down when its reports came."""
    from torchtune_smt.runs.rounds import Callback, Rounds
    from torchtune_smt.tuners.base import Report

    class Clock(Callback):
        def on_start(self, run: Rounds) -> None:
            Path(path).write_text("")
            self.write("round", 0)

        def on_report(self, report: Report, run: Rounds) -> None:
            self.write(report.kind, report.sentences)

        # What the clock itself has cost this thread: it looks at all processes of the machine.
        own = 0.0

        def write(self, kind: str, sentences: int) -> None:
            begin = of_thread()
            every = cpu() + sum(cpu_of_workers())
            line = [kind, sentences, wall(), begin - self.own, every]
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")
            self.own += of_thread() - begin

    return Clock()


class Measured(NamedTuple):
    """Sentences a second, the master's share, and milliseconds of processors a sentence."""

    speed: float
    master: float
    each: float


def measured(lines: list[Any]) -> Measured:
    """Return what all epochs but the first took."""
    sentences, wall, master, every = 0, 0.0, 0.0, 0.0
    epoch, begin, last = 0, lines[0], lines[0]
    count = 0
    for line in lines[1:]:
        if line[0] != "round":
            count, last = count + line[1], line
            continue
        epoch += 1
        if epoch > 1:
            sentences += count
            wall += last[2] - begin[2]
            master += last[3] - begin[3]
            every += last[4] - begin[4]
        begin, count = line, 0
    return Measured(sentences / wall, master / wall, 1000 * every / sentences)


def run(folder: Path, name: str, options: list[str]) -> Measured:
    """Tune as options say, and return what was `measured`."""
    path = folder / f"{name}.jsonl"
    command = [
        *[sys.executable, str(REPOSITORY / "train.py"), *options, "data.test=null"],
        *["tuner.tune_on=train", f"hydra.run.dir={folder / name}", "tuner.result=last"],
        f"callbacks=[{{_target_: parallel.clock, path: {path}}}]",
    ]
    places = [str(REPOSITORY), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return measured([json.loads(line) for line in path.read_text().splitlines()])


def together(folder: Path, runs: int, options: list[str]) -> Measured:
    """Return the throughput of several runs at a time, which have nothing to do with each other."""
    with ThreadPoolExecutor(runs) as pool:
        done = list(pool.map(lambda number: run(folder, f"limit{number}", options), range(runs)))
    each = sum(one.each for one in done) / runs
    return Measured(sum(one.speed for one in done), max(one.master for one in done), each)


def weigh() -> None:
    """Print how many bytes are sent for how many active features."""
    from torchtune_smt.core.weights import Weights
    from torchtune_smt.parallel.shard_worker import active

    print("\nactive of features    bytes sent   bytes a feature")
    for features in (10_000, 1_000_000):
        for count in (1_000, 10_000):
            weights = Weights()
            weights.features.intern([f"rule_id:wort{i}~word{i}" for i in range(features)])
            weights.grow()
            chosen = np.random.default_rng(0).choice(features, count, replace=False)
            weights.parameter.data[chosen] = 1.0
            size = len(pickle.dumps(active(weights)))
            print(f"{count:6,} of {features:9,}  {size:11,}  {size / count:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="example")
    parser.add_argument("--sentences", type=int, default=1200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose names begin so")
    given, overrides = parser.parse_known_args()
    workers = given.workers
    common = [f"data={given.data}", f"tuner.sentences={given.sentences}", *overrides]
    common += [f"tuner.epochs={given.epochs}", "decoder.pop_limit=200", "tuner.batch_size=10"]
    shards = [f"parallel.shards={workers * SHARDS_A_WORKER}", f"engine={given.engine}"]
    shards += [f"engine.workers={workers}", "threads=1"]
    rows = {
        "serial, 1 thread": ["threads=1"],
        f"serial, {workers} threads": [f"threads={workers}"],
        f"stale, {workers} workers": [
            *["parallel=stale", f"parallel.workers={workers}"],
            "threads=1",
        ],
        f"itermix, {workers} workers": ["parallel=itermix", *shards],
        f"itersel, {workers} workers": ["parallel=itersel", *shards],
    }
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {' '.join(common)}")
    print(f"{'':24}{'sentences/s':>12}{'ratio':>8}{'master':>8}{'CPU ms':>8}{'ratio':>8}")
    base: Measured | None = None

    def show(row: str, found: Measured) -> None:
        nonlocal base
        base = base or found
        print(
            f"{row:24}{found.speed:12.1f}{found.speed / base.speed:8.2f}{found.master:8.1%}"
            f"{found.each:8.2f}{found.each / base.each:8.2f}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as name:
        for number, (row, options) in enumerate(rows.items()):
            if row.startswith(tuple(given.only)):
                show(row, run(Path(name), str(number), [*common, *options]))
        if "limit".startswith(tuple(given.only)):
            limit = together(Path(name), workers, [*common, "threads=1"])
            show(f"limit: {workers} runs", limit)
    weigh()


if __name__ == "__main__":
    main()
