"""What an epoch on shards costs, by sentences and by shards: processor time, memory, messages.

Tunes with train.py on training sentences, in shards, in one worker. First with more and more
sentences, in shards of one size: user CPU of the worker, without its opening, processor time of the
driver, which mixes, and what it gets and sends, but for the evaluation of dev. Then with the same
sentences in more and more shards: the driver's memory, what is its own alone (Anonymous in /proc)
and at its peak. Each ratio is to the first line of its table; 1.00 is wanted. The model is built
before if need be.

    python scripts/experiments/bench/shards.py [OVERRIDE ...] [--data multi30k] [--pop-limit 200]
        [--epochs 1] [--sentences 1000 4000 16000 29000] [--shards 4 16 64] [--of 4000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from timing import cpu

REPOSITORY = Path(__file__).resolve().parents[3]
# Sentences of a shard where their number grows.
SHARD = 1000
TICKS = os.sysconf("SC_CLK_TCK")


class Line(NamedTuple):
    """What there is after a report: seconds of processors, bytes, and MiB."""

    kind: str
    sentences: int
    features: int
    worker: float
    driver: float
    sent: int
    got: int
    own: float
    peak: float


def meter(path: str) -> Any:
    """Return the callback of a run that writes down what it uses."""
    from torchtune_smt.runs.rounds import Callback, Rounds
    from torchtune_smt.tuners.base import Report

    class Meter(Callback):
        sent = got = 0

        def on_start(self, run: Rounds) -> None:
            Path(path).write_text("")
            send, receive = Connection.send_bytes, Connection.recv_bytes

            def counted_send(pipe: Connection, message: bytes) -> None:
                if not self.sent:
                    # The worker is open, and computes nothing yet.
                    self.write("start", 0, 0)
                self.sent += len(message)
                send(pipe, message)

            def counted_receive(pipe: Connection) -> bytes:
                message = receive(pipe)
                self.got += len(message)
                return message

            Connection.send_bytes = counted_send  # type: ignore[method-assign, assignment]
            Connection.recv_bytes = counted_receive  # type: ignore[method-assign, assignment]

        def on_report(self, report: Report, run: Rounds) -> None:
            features = int(report.numbers.get("parallel/shard_features", 0))
            self.write(report.kind, report.sentences, features)

        def write(self, kind: str, sentences: int, features: int) -> None:
            worker = sum(cpu_of_workers())
            own, peak = memory()
            line = [kind, sentences, features, worker, cpu()]
            with open(path, "a") as file:
                file.write(json.dumps([*line, self.sent, self.got, own, peak]) + "\n")

    return Meter()


def cpu_of_workers() -> Iterator[float]:
    """Yield the seconds of user CPU of each process that this one has opened."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and b"spawn_main" in (folder / "cmdline").read_bytes():
                yield int(fields[11]) / TICKS
        except OSError:
            continue


def memory() -> tuple[float, float]:
    """Return the MiB that this process shares with nobody, and how many it held at most."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return own / 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(folder: Path, sentences: int, shards: int, options: list[str]) -> list[Line]:
    """Tune on so many sentences in so many shards; return what was written down."""
    name = str(len(list(folder.iterdir())))
    path = folder / f"{name}.jsonl"
    command = [
        *[sys.executable, str(REPOSITORY / "train.py"), "tuner.tune_on=train"],
        *[f"tuner.sentences={sentences}", "tuner.result=last", "data.test=null"],
        *["parallel=itermix", f"parallel.shards={shards}", "engine.workers=1", "threads=1"],
        *[f"hydra.run.dir={folder / name}", *options],
        f"callbacks=[{{_target_: shards.meter, path: {path}}}]",
    ]
    places = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": places}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [Line(*json.loads(line)) for line in path.read_text().splitlines()]


def epochs(lines: list[Line]) -> Iterator[tuple[Line, list[Line]]]:
    """Yield what there was before each epoch, and the lines of its shards."""
    before, shards = lines[0], list[Line]()
    for line in lines[1:]:
        if line.kind == "part":
            shards.append(line)
        elif line.kind == "round":
            yield before, shards
            before, shards = line, []


def by_sentences(folder: Path, sizes: list[int], options: list[str]) -> None:
    print(
        f"\n{'':10}{'':6}{'ms a sentence':>31}{'':7}\n"
        f"{'sentences':>10}{'epoch':>6}{'worker':>12}{'ratio':>7}{'driver':>12}{'ratio':>7}"
        f"{'got, kB':>10}{'of features':>12}{'bytes each':>12}{'ratio':>7}{'sent, kB':>10}"
    )
    base: dict[int, tuple[float, float, float]] = {}
    for size in sizes:
        lines = run(folder, size, -(-size // SHARD), options)
        for epoch, (before, shards) in enumerate(epochs(lines), 1):
            last, features = shards[-1], sum(line.features for line in shards)
            worker = 1000 * (last.worker - before.worker) / size
            driver = 1000 * (last.driver - before.driver) / size
            got, sent = last.got - before.got, last.sent - before.sent
            values = worker, driver, got / features
            first = base.setdefault(epoch, values)
            ratios = [value / one for value, one in zip(values, first, strict=True)]
            print(
                f"{size:10,}{epoch:6}{worker:12.2f}{ratios[0]:7.2f}{driver:12.3f}{ratios[1]:7.2f}"
                f"{got / 1000:10,.0f}{features:12,}{values[2]:12.1f}{ratios[2]:7.2f}"
                f"{sent / 1000:10,.0f}",
                flush=True,
            )


def by_shards(folder: Path, size: int, counts: list[int], options: list[str]) -> None:
    print(
        f"\n{size:,} sentences\n"
        f"{'shards':>10}{'own MiB':>10}{'ratio':>7}{'peak MiB':>10}{'ratio':>7}"
    )
    base: tuple[float, float] | None = None
    for count in counts:
        lines = run(folder, size, count, options)
        # While results come, and the sums of all are there.
        own, peak = max(line.own for line in lines if line.kind == "part"), lines[-1].peak
        base = base or (own, peak)
        print(
            f"{count:10}{own:10.0f}{own / base[0]:7.2f}{peak:10.0f}{peak / base[1]:7.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="multi30k")
    parser.add_argument("--sentences", type=int, nargs="*", default=[1000, 4000, 16000, 29000])
    parser.add_argument("--shards", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--of", type=int, default=4000, help="sentences of so many shards")
    parser.add_argument("--pop-limit", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=1)
    given, overrides = parser.parse_known_args()
    options = [f"data={given.data}", f"tuner.epochs={given.epochs}"]
    options += [f"decoder.pop_limit={given.pop_limit}", *overrides]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {' '.join(options)}")
    with tempfile.TemporaryDirectory() as name:
        if given.sentences:
            by_sentences(Path(name), given.sentences, options)
        if given.shards:
            by_shards(Path(name), given.of, given.shards, options)


if __name__ == "__main__":
    main()
