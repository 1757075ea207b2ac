"""Lists of a million lines: reading them, the start of tuning, and `rerank`, in one run.

    python scripts/experiments/bench/many_lines.py [--lines N ...] [--only rerank]

Writes lists in Moses's form (20 dense and 40 sparse features a line, 100 lines a sentence; a few
sentences are made up, and repeated under other numbers) to a temporary folder. Prints, each
measured in a process of its own: seconds of CPU and the peak of memory of reading the lists, of
`tune_lists` until its tuner begins, and of `rerank`, with its lines a second.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from timing import wall

K = 100
DENSE = 20
SPARSE = 40
DISTINCT = 50
READ = """\
import sys
from torchtune_smt.kbest.forms import read_lists
stored = read_lists(sys.argv[1])
print(stored.lists.n_hypotheses, stored.lists.rows.value.size, len(stored.dense_names))
"""
TUNE = """\
import os, sys
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt import KBestMira, ListSet, tune_lists
from torchtune_smt.metrics import NakovBleu
begin = sum(os.times()[:2])
stored = read_lists(sys.argv[1])
class Told(KBestMira):
    def solve(self, lists, *rest):
        print(f"the tuner begins after {sum(os.times()[:2]) - begin:.1f} s of CPU", flush=True)
        sys.exit()
references = [[["w1", "w2", "w3", "w4"]]] * stored.n_sentences
tune_lists(ListSet("dev", stored.lists, references), metric=NakovBleu(), solver=Told(), folds=0)
"""


def write(path: Path, lines: int, generator: np.random.Generator) -> None:
    """Write lists of so many lines, and weights of their features beside them."""
    blocks = []
    for _ in range(DISTINCT):
        names = [f"WT_wort{i}~word{i}" for i in generator.integers(0, 200_000, 80)]
        block = []
        for _ in range(K):
            values = [f"{v:.6g}" for v in generator.normal(size=DENSE) * 10]
            dense = f"LM0= {values[0]} TM0= {' '.join(values[1:5])} LR0= {' '.join(values[5:])}"
            chosen = sorted(set(generator.choice(names, SPARSE, replace=False)))
            sparse = " ".join(f"{name}= 1" for name in chosen)
            words = " ".join(f"w{w}" for w in generator.integers(0, 5000, 11))
            block.append(f" ||| {words} ||| {dense} {sparse} ||| -10.5\n")
        blocks.append(block)
    with path.open("w", encoding="utf-8") as file:
        for s in range(lines // K):
            file.writelines(f"{s}{line}" for line in blocks[s % DISTINCT])
    path.with_suffix(".weights").write_text("LM0_0 1\nTM0_0 0.3\nTM0_2 -0.2\nLR0_3 0.1\n")


def measured(*command: str) -> tuple[float, float, float, str]:
    """Return seconds of CPU and by the clock, MiB of memory at most, and what a command prints."""
    begin = wall()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}: failed")
    cpu = usage.ru_utime + usage.ru_stime
    return cpu, wall() - begin, usage.ru_maxrss / 1024, out.strip()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--only", choices=["read", "tune", "rerank"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        write(small, K * DISTINCT, np.random.default_rng(0))
        tools = {
            "read": lambda path: ["-c", READ, str(path)],
            "tune": lambda path: ["-c", TUNE, str(path)],
            "rerank": lambda path: [
                *[str(Path(__file__).resolve().parents[2] / "rerank.py"), f"input={path}"],
                *[f"weights={path.with_suffix('.weights')}", f"output={folder}/out"],
            ],
        }
        chosen = {n: tool for n, tool in tools.items() if options.only in (None, n)}
        # Compiles, and says what starting takes.
        starts = {}
        for name, tool in chosen.items():
            measured(*tool(small))
            starts[name] = measured(*tool(small))[0]
        for lines in options.lines:
            path = Path(folder) / "lists"
            write(path, lines, np.random.default_rng(0))
            size = path.stat().st_size / 2**20
            print(f"{lines:,} lines, {size:,.0f} MiB", flush=True)
            for name, tool in chosen.items():
                cpu, clock, memory, out = measured(*tool(path))
                rate = lines / max(cpu - starts[name], 1e-9)
                print(
                    f"  {name}: {cpu:.1f} s of CPU ({starts[name]:.1f} s of them to start), "
                    f"{clock:.1f} s by the clock, {memory:,.0f} MiB, {rate:,.0f} lines/s; {out}",
                    flush=True,
                )
            path.unlink()


if __name__ == "__main__":
    main()
