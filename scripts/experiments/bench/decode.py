"""The hierarchical decoder beside cdec: the development set of Multi30k, from process start.

    python scripts/experiments/bench/decode.py [--shared ../shared] [--threads 1] [--children 3]

Every run is a process of its own, with cdec's grammar (gz), language model, weights and limits.
It counts everything from the start of the interpreter on; kernels are compiled and the copies of
the model are written before, by a run that is not counted. The median of some runs is
reported: user CPU time of the whole process, as its parent reads it when it is gone, and where it
went. With `--threads` above 1, wall-clock time decides, and nothing is compared.

cdec is not at hand. Its seconds were recorded on one core of another machine, and are scaled by
three measures which were taken there, too. They include writing the k-best lists as text, and so do
ours, where k is above 1; without that, the best translations are written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import timing
from timing import megabytes, middle, seconds, user, wall

SETTINGS = [(200, 100), (200, 1), (30, 100)]  # pop limit, k
CDEC_SECONDS = {(200, 100): 123.0, (200, 1): 93.0, (30, 100): 37.0}
REQUIRED_RATIO = {200: 8.0, 30: 4.0}
REQUIRED_MEAN = {200: -3.2446, 30: -3.2477}
# Seconds of process time where cdec ran: least and most of three tries.
CALIBRATION = {"Python sum": (0.33, 0.50), "argsort": (0.58, 0.74), "gather": (0.11, 0.29)}


def child(shared: Path, folder: Path, pop_limit: int, k: int, threads: int) -> None:
    """Decode the set; print figures and translations as JSON. The folder has the model."""
    rules, arpa = folder / "grammar.gz", folder / "lm.arpa.gz"
    began = wall()
    from torchtune_smt.core.snapshot import FrozenWeights
    from torchtune_smt.core.textio import read_lines
    from torchtune_smt.core.weights_io import read_weights
    from torchtune_smt.decoders.hiero import HieroDecoder
    from torchtune_smt.grammar import read_grammar
    from torchtune_smt.kbest.formats import nbest_lines
    from torchtune_smt.kbest.lists import Source
    from torchtune_smt.lm import NgramModel
    from torchtune_smt.models import Model

    stages = {"start": user()}
    cdec = shared / "oracles" / "cdec"
    grammar = read_grammar(rules, cache=True)
    stages["grammar"] = user()
    model = NgramModel.load(arpa)
    stages["language model"] = user()
    decoder = HieroDecoder(
        Model(grammar, model), k=k, pop_limit=pop_limit, max_span=15, threads=threads
    )
    weights = FrozenWeights(*read_weights(cdec / "weights"))
    lines = read_lines(shared / "data" / "multi30k-de-en" / "dev.de")
    sources = [Source(i, line.split()) for i, line in enumerate(lines)]
    decoding = wall()
    kbests = []
    for first in range(0, len(sources), 100):
        kbests += decoder.decode(sources[first : first + 100], weights)
    stages["decoding"] = user()
    ended = wall()
    if k > 1:
        with open(os.devnull, "w") as out:
            for kbest in kbests:
                texts = kbest.texts()
                out.writelines(nbest_lines(kbest, texts, decoder.dense_names))
        stages["lists as text"] = user()
    best = [kbest.text(0) for kbest in kbests]
    figures = {
        "stages": stages,
        "wall": ended - began,
        "decoding wall": ended - decoding,
        "mean": sum(float(kbest.score[0]) for kbest in kbests) / len(kbests),
        "entries": sum(map(len, kbests)),
        "megabytes": megabytes(),
        "best": best,
    }
    json.dump(figures, sys.stdout)


def run_child(arguments: argparse.Namespace, model: Path, pop_limit: int, k: int) -> dict:
    """Run a child when the machine is quiet; return its figures, and its CPU time."""
    command = [sys.executable, __file__, "--shared", arguments.shared]
    command += ["--threads", arguments.threads, "--child", model, pop_limit, k]
    return timing.child(command, arguments.patience)


def calibrate() -> dict[str, float]:
    """Measure this machine; return for each measure how many times the time it takes here."""
    import numpy as np

    generator = np.random.default_rng(0)
    numbers = generator.random(10**7)
    places = generator.integers(0, 10**7, 10**7)
    measures: dict[str, Callable[[], object]] = {
        "Python sum": lambda: sum(i * i for i in range(10**7)),
        "argsort": lambda: np.argsort(numbers),
        "gather": lambda: numbers[places],
    }
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"calibration, process time of three tries (Python {version}, there 3.11)")
    factors = {}
    for name, work in measures.items():
        times = [seconds(work) for _ in range(3)]
        low, high = CALIBRATION[name]
        # From the middle of the range there to the middle here, on a scale of ratios.
        factors[name] = math.sqrt(min(times) * max(times) / (low * high))
        here = f"{min(times):.2f}-{max(times):.2f} s"
        print(f"  {name:12}{here:>14} here, {low:.2f}-{high:.2f} s there: x {factors[name]:.2f}")
    factors["mean"] = math.prod(factors.values()) ** (1 / len(factors))
    print(f"  {'mean':12}{'':14}                          x {factors['mean']:.2f}  (geometric)")
    return factors


def report(
    arguments: argparse.Namespace,
    model: Path,
    references: list[list[str]],
    factors: dict[str, float],
) -> None:
    """Run all settings and print what came out, beside cdec's figures."""
    from torchtune_smt.metrics.corpus import corpus_bleu

    for pop_limit, k in SETTINGS:
        runs = [run_child(arguments, model, pop_limit, k) for _ in range(arguments.children)]
        key = "user" if arguments.threads == 1 else "wall"
        best = middle(runs, key)
        sentences = len(best["best"])
        stages = {"": 0.0, **best["stages"], "output and exit": best["user"]}
        parts = [f"{b} {stages[b] - stages[a]:.2f}" for a, b in pairwise(stages)]
        all_runs = ", ".join(f"{run[key]:.2f} (load {run['load']:.1f})" for run in runs)
        decoding = best["decoding wall"]
        print(f"pop limit {pop_limit}, k = {k}, {best['entries']} entries")
        print(f"  user CPU         {best['user']:8.2f} s   {', '.join(parts)}")
        print(f"  system CPU       {best['system']:8.2f} s")
        print(f"  {key} of all runs {all_runs}")
        print(f"  sentences/s      {sentences / best['user']:8.1f}     of user CPU, all included")
        print(f"  wall             {best['wall']:8.2f} s   decoding alone {decoding:.2f} s, "
              f"{sentences / decoding:.1f} sentences/s, {arguments.threads} thread(s)")  # fmt: skip
        print(f"  memory           {best['megabytes']:8.0f} MB")
        mean, required = best["mean"], REQUIRED_MEAN[pop_limit]
        print(f"  mean 1-best score{mean:9.5f}     {_verdict(mean >= required)}: {required} wanted")
        print(f"  BLEU             {corpus_bleu(best['best'], references).score:8.2f}")
        if arguments.threads > 1:
            continue  # cdec's seconds are those of one core
        theirs = CDEC_SECONDS[pop_limit, k]
        print(f"  cdec             {theirs:8.0f} s   user CPU, recorded, one core")
        for name, factor in {"raw": 1.0, **factors}.items():
            ratio = theirs * factor / best["user"]
            met = _verdict(ratio >= REQUIRED_RATIO[pop_limit])
            scaled = "not scaled" if name == "raw" else f"scaled by {name}"
            print(f"    ratio          {ratio:8.2f}     {scaled}; "
                  f"{met}: {REQUIRED_RATIO[pop_limit]:.0f} wanted")  # fmt: skip


def _verdict(met: bool) -> str:
    return "met" if met else "NOT MET"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parents[4] / "shared"
    parser.add_argument("--shared", type=Path, default=default, help="data and oracles")
    parser.add_argument("--threads", type=int, default=1, help="sentences decoded at a time")
    parser.add_argument("--children", type=int, default=3, help="runs, of which the median counts")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds to wait for a quiet machine, a run"
    )
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.shared = arguments.shared.resolve()
    if arguments.child:
        model, pop_limit, k = arguments.child
        child(arguments.shared, Path(model), int(pop_limit), int(k), arguments.threads)
        return
    from torchtune_smt.core.textio import read_lines

    factors = calibrate()
    lines = read_lines(arguments.shared / "data" / "multi30k-de-en" / "dev.en")
    with tempfile.TemporaryDirectory() as folder:
        # The copies of both files lie beside them, where one can write.
        model, oracles = Path(folder), arguments.shared / "oracles"
        (model / "lm.arpa.gz").symlink_to(oracles / "lm" / "multi30k.en.5gram.arpa.gz")
        (model / "grammar.gz").symlink_to(oracles / "cdec" / "grammar.dev.gz")
        run_child(arguments, model, 1, 1)
        report(arguments, model, [[line] for line in lines], factors)


if __name__ == "__main__":
    main()
