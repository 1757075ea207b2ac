"""What is said at the end of a run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchtune_smt.core.resources import from_here
from torchtune_smt.core.weights import Weights
from torchtune_smt.metrics.base import Score
from torchtune_smt.runs.log import active_features
from torchtune_smt.runs.rounds import Rounds


def gained_nothing(run: Rounds) -> str:
    """Return what is said where dev is no better than before."""
    unit, weights = run.tuner.unit, run.tuner.weights
    if run.result == "best":
        what = f"no {unit} was better on dev than the start, and its weights are kept"
        if not weights.parameter.any():
            what += " (all are 0: they rank nothing, and leave lists in the order they come in)"
    else:
        what = (
            f"dev {run.name} is no better than before; tuner.result=best keeps the start if no "
            f"{unit} is"
        )
    advice = f"; try {run.tuner.advice}" if run.tuner.advice else ""
    return f"tuning has gained nothing: {what}{advice} (docs/errors.md)"


def summary(
    before: Mapping[str, Score],
    after: Mapping[str, Score],
    signature: str,
    weights: Weights,
    run: Rounds,
    reached: Sequence[str],
    start: float,
) -> str:
    """Return what came out as a table and some lines; before BLEU the metric that was tuned."""
    lines = []
    if run.name != "BLEU":
        old, new = (run.measure.better(some["dev"].tuned) for some in (before, after))
        wide, digits = max(6, len(run.name) + 1), run.measure.digits
        lines += [
            f"{run.name:<{wide}}{'before':>9}{'after':>9}{'gain':>9}",
            f"{'dev':<{wide}}{old:>9.{digits}f}{new:>9.{digits}f}{new - old:>+9.{digits}f}",
        ]
    lines.append(f"{'BLEU':<6}{'before':>8}{'after':>8}{'gain':>8}")
    for name, score in after.items():
        old, new = before[name].bleu, score.bleu
        lines.append(f"{name:<6}{old:>8.2f}{new:>8.2f}{new - old:>+8.2f}")
    active = active_features(weights)
    parts = ", ".join(f"{count:,} {name}" for name, count in sorted(active.items()))
    lines += [
        f"signature: {signature}",
        *reached,
        f"active features: {sum(active.values()):,} ({parts})",
        f"time: {time.perf_counter() - start:.0f} s",
    ]
    return "\n".join(lines)


def contents(folder: Path) -> str:
    """Return what lies in a run folder, a line a file, and how its curves are looked at."""
    folder = from_here(folder)
    lines = [f"{folder} has"]
    for name, what in {
        "weights.txt.gz": "tuned weights, name and value a line",
        "moses.ini": "what there was, with the tuned weights",
        "moses.sparse.txt": "its sparse weights",
        "groups.tsv.gz": "groups: number, weight, size, and a feature",
        "dev.translations.txt": "translations with the tuned weights",
        "test.translations.txt": "translations with the tuned weights",
        "compounds.tsv.gz": "counts of words, by which compounds were split",
        "lists": "k-best lists of all iterations",
        "train.log": "what was printed",
        "metrics.jsonl": "everything measured, a line each",
        "config.yaml": "the configuration, resolved",
    }.items():
        if (folder / name).exists():
            lines.append(f"  {name:<22}{what}")
    return "\n".join([*lines, f"curves: tensorboard --logdir {shlex.quote(str(folder))}"])
