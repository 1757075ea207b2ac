"""The phrase-based decoder beside Moses: the development set of Multi30k, from process start.

    python scripts/experiments/bench/phrase.py [--shared ../shared] [--children 3]

Every run is a process of its own, with Moses's tables (gz), language model, weights and limits
(pop limit 500, stack 500, distortion limit 6). It counts everything from the start of the
interpreter on; kernels are compiled and the cache of the language model is written before, by a run
that is not counted. The median of some runs is reported: user CPU time of the whole process.

Moses is not at hand. Its seconds were recorded on one core of another machine, and are scaled as in
``decode.py``. The mean total is Moses's: no forward reordering score of the last phrase, -100 for
each unknown word.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import timing
from decode import calibrate
from timing import megabytes, middle, user

# Weights, k: seconds of Moses, mean total that is required.
SETTINGS = {
    ("before", 1): (18.0, None),
    ("before", 100): (28.0, None),
    ("mira", 1): (None, -50.0506),
}
REQUIRED_RATIO = 3.0


def child(shared: Path, arpa: Path, which: str, k: int) -> None:
    """Decode the set; print figures and translations as JSON."""
    from torchtune_smt.core.snapshot import FrozenWeights
    from torchtune_smt.core.textio import read_lines
    from torchtune_smt.decoders.phrase import PhraseDecoder
    from torchtune_smt.grammar.formats import read_phrase_table
    from torchtune_smt.kbest.lists import Source
    from torchtune_smt.lm import NgramModel
    from torchtune_smt.models import Model
    from torchtune_smt.models.moses_ini import read_moses_ini

    stages = {"start": user()}
    moses = shared / "oracles" / "moses"
    table = read_phrase_table(
        moses / "phrase-table.dev.gz",
        reordering=moses / "reordering-table.dev.gz",
        reordering_type="wbe-msd-bidirectional-fe-allff",
    )
    stages["tables"] = user()
    model = NgramModel.load(arpa)
    stages["language model"] = user()
    weights = dict(read_moses_ini(moses / "moses.before.ini").weights)
    if which == "mira":
        values: dict[str, list[float]] = {}
        for line in read_lines(moses / "mira" / "run9.dense"):
            label, value = line.split()
            values.setdefault(label.rstrip("="), []).append(float(value))
        weights |= {f"{label}_{i}": x for label, row in values.items() for i, x in enumerate(row)}
    decoder = PhraseDecoder(Model(table, model), k=k)
    snapshot = FrozenWeights.of(weights)
    lines = read_lines(shared / "data" / "multi30k-de-en" / "dev.de")
    sources = [Source(i, line.split()) for i, line in enumerate(lines)]
    kbests = []
    for first in range(0, len(sources), 100):
        kbests += decoder.decode(sources[first : first + 100], snapshot)
    stages["decoding"] = user()
    figures = {
        "stages": stages,
        "mean": sum(float(kbest.score[0]) for kbest in kbests) / len(kbests),
        "entries": sum(map(len, kbests)),
        "megabytes": megabytes(),
        "best": [kbest.text(0) for kbest in kbests],
    }
    json.dump(figures, sys.stdout)


def run_child(shared: Path, arpa: Path, which: str, k: int) -> dict:
    """Run a child; return its figures, and its CPU time."""
    command = [sys.executable, __file__, "--shared", shared, "--child", arpa, which, k]
    return timing.child(command)


def report(arguments: argparse.Namespace, arpa: Path, factors: dict[str, float]) -> None:
    """Run all settings and print what came out, beside Moses's figures."""
    from torchtune_smt.core.textio import read_lines
    from torchtune_smt.metrics.corpus import corpus_bleu

    references = [
        [line] for line in read_lines(arguments.shared / "data" / "multi30k-de-en" / "dev.en")
    ]
    for (which, k), (seconds, required) in SETTINGS.items():
        runs = [run_child(arguments.shared, arpa, which, k) for _ in range(arguments.children)]
        best = middle(runs)
        stages = {"": 0.0, **best["stages"], "output and exit": best["user"]}
        parts = [f"{b} {stages[b] - stages[a]:.2f}" for a, b in pairwise(stages)]
        all_runs = ", ".join(f"{run['user']:.2f}" for run in runs)
        print(f"weights {which}, k = {k}, {best['entries']} entries")
        print(f"  user CPU         {best['user']:8.2f} s   {', '.join(parts)}")
        print(f"  user of all runs {all_runs}")
        print(f"  sentences/s      {len(best['best']) / best['user']:8.1f}     all included")
        print(f"  memory           {best['megabytes']:8.0f} MB")
        verdict = "" if required is None else _verdict(best["mean"] >= required)
        wanted = "" if required is None else f"{verdict}: {required} wanted"
        print(f"  mean total       {best['mean']:8.4f}     {wanted}")
        print(f"  BLEU             {corpus_bleu(best['best'], references).score:8.2f}")
        if seconds is None:
            continue
        print(f"  Moses            {seconds:8.0f} s   user CPU, recorded, one core")
        for name, factor in {"raw": 1.0, **factors}.items():
            ratio = seconds * factor / best["user"]
            scaled = "not scaled" if name == "raw" else f"scaled by {name}"
            met = _verdict(ratio >= REQUIRED_RATIO)
            print(
                f"    ratio          {ratio:8.2f}     {scaled}; {met}: {REQUIRED_RATIO:.0f} wanted"
            )


def _verdict(met: bool) -> str:
    return "met" if met else "NOT MET"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parents[4] / "shared"
    parser.add_argument("--shared", type=Path, default=default, help="data and oracles")
    parser.add_argument("--children", type=int, default=3, help="runs, of which the best counts")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.shared = arguments.shared.resolve()
    if arguments.child:
        arpa, which, k = arguments.child
        child(arguments.shared, Path(arpa), which, int(k))
        return
    factors = calibrate()
    with tempfile.TemporaryDirectory() as folder:
        # The cache of the language model lies beside it, where one can write.
        arpa = Path(folder) / "lm.arpa.gz"
        arpa.symlink_to(arguments.shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz")
        run_child(arguments.shared, arpa, "before", 1)
        report(arguments, arpa, factors)


if __name__ == "__main__":
    main()
