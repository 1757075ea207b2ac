"""k-best MIRA and MERT beside Moses's kbmira and mert, on the same lists, from process start.

    python scripts/experiments/bench/batch_tuners.py [--shared ../shared] [--seeds 5] [--tuner mira]

The lists are Moses's own tuning files: nine iterations for MIRA (658,172 entries), four for MERT.
Every run is a process of its own with another seed. It counts everything from the start of the
interpreter on, reading included; kernels are compiled before, by a run that is not counted. The
time is user CPU of the whole process, as its parent reads it when it is gone.

Moses's tools are not at hand. Their seconds were recorded on one core of another machine, and are
scaled by three measures which were taken there, too. So were the BLEU scores that they print, of
the best of each list under the weights they return: kbmira's are those of several seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import timing
from decode import calibrate
from timing import megabytes, middle, user, wall

ITERATIONS = {"mira": 9, "mert": 4}
SECONDS = {"mira": 5.0, "mert": 68.0}
# Least and most, by seed.
BLEU = {"mira": (0.4063, 0.4069), "mert": (0.41055, 0.41055)}


def start_weights(folder: Path, tuner: str) -> dict[str, float]:
    """Return the weights that Moses's tool was started with, by name."""
    if tuner == "mira":
        lines = (folder / "run9.dense").read_text().splitlines()
        pairs = [line.split("= ") for line in lines]
        seen: Counter[str] = Counter()
        names = []
        for label, _ in pairs:
            names.append(f"{label}_{seen[label]}")
            seen[label] += 1
        return dict(zip(names, (float(value) for _, value in pairs), strict=True))
    import gzip

    with gzip.open(folder / "run4.features.dat.gz", "rt") as file:
        names = file.readline().split()[4:]
    values = (folder / "run4.init.opt").read_text().splitlines()[0].split()
    return dict(zip(names, map(float, values), strict=True))


def child(folder: Path, tuner: str, seed: int) -> None:
    """Read and tune; print figures as JSON."""
    import numpy as np

    from torchtune_smt.decoders.kbest_files import KBestFiles

    if tuner == "mira":
        from torchtune_smt.tuners.mira import KBestMira

        solver = KBestMira()
    else:
        from torchtune_smt.tuners.mert import Mert

        solver = Mert(restarts=20)
    stages = {"start": user()}
    runs = range(1, ITERATIONS[tuner] + 1)
    lists = (
        KBestFiles()
        .read(
            "dev",
            [folder / f"run{run}.features.dat.gz" for run in runs],
            [folder / f"run{run}.scores.dat.gz" for run in runs],
            for_tuning=True,
        )
        .lists
    )
    stages["reading"] = user()
    start = np.zeros(len(lists.features))
    for name, value in start_weights(folder, tuner).items():
        start[lists.features.id(name)] = value
    began = wall()
    solution = solver.solve(lists, start, (seed,))
    stages["tuning"] = user()
    figures = {
        "stages": stages,
        "wall": wall() - began,
        "report": solution.report,
        "entries": lists.n_hypotheses,
        "megabytes": megabytes(),
    }
    json.dump(figures, sys.stdout)


def run_child(arguments: argparse.Namespace, tuner: str, seed: int) -> dict:
    """Run a child when the machine is quiet; return its figures, and its CPU time."""
    command = [sys.executable, __file__, "--shared", arguments.shared, "--child", tuner, seed]
    return timing.child(command, arguments.patience)


def report(arguments: argparse.Namespace, tuner: str, factors: dict[str, float]) -> None:
    """Run one tuner with all seeds and print what came out, beside Moses's figures."""
    run_child(arguments, tuner, 0)
    runs = [run_child(arguments, tuner, seed) for seed in range(arguments.seeds)]
    best = middle(runs)
    stages = {"": 0.0, **best["stages"], "exit": best["user"]}
    parts = [f"{b} {stages[b] - stages[a]:.2f}" for a, b in pairwise(stages)]
    bleus = [run["report"]["bleu"] for run in runs]
    mean, (low, high) = sum(bleus) / len(bleus), BLEU[tuner]
    print(f"{tuner}: {best['entries']:,} different entries")
    print(f"  user CPU         {best['user']:8.2f} s   {', '.join(parts)}")
    print(f"  system CPU       {best['system']:8.2f} s")
    all_runs = ", ".join(f"{run['user']:.2f} (load {run['load']:.1f})" for run in runs)
    print(f"  of all runs      {all_runs}")
    print(f"  tuning, wall     {best['wall']:8.2f} s")
    print(f"  memory           {best['megabytes']:8.0f} MB")
    print(f"  BLEU on the lists{mean:9.5f}     mean of {len(bleus)} seeds, "
          f"{min(bleus):.5f} to {max(bleus):.5f}; {_verdict(mean >= (low + high) / 2)}: Moses's "
          + (f"{low:.4f} to {high:.4f}" if low < high else f"{low:.5f}"))  # fmt: skip
    seconds = SECONDS[tuner]
    print(f"  Moses's          {seconds:8.1f} s   user CPU, recorded, one core")
    for name, factor in {"raw": 1.0, **factors}.items():
        ratio = seconds * factor / best["user"]
        scaled = "not scaled" if name == "raw" else f"scaled by {name}"
        print(f"    ratio          {ratio:8.2f}     {scaled}; {_verdict(ratio >= 1)}: 1 wanted")


def _verdict(met: bool) -> str:
    return "met" if met else "NOT MET"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parents[4] / "shared"
    parser.add_argument("--shared", type=Path, default=default, help="data and oracles")
    parser.add_argument("--seeds", type=int, default=5, help="runs, of which the fastest counts")
    parser.add_argument("--tuner", choices=list(SECONDS), help="one of them; both by default")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds to wait for a quiet machine, a run"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.shared = arguments.shared.resolve()
    moses = arguments.shared / "oracles" / "moses"
    if arguments.child:
        tuner, seed = arguments.child
        child(moses / tuner, tuner, int(seed))
        return
    factors = calibrate()
    for tuner in [arguments.tuner] if arguments.tuner else SECONDS:
        report(arguments, tuner, factors)


if __name__ == "__main__":
    main()
