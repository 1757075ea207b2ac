"""What a run shows: bars of how far it is, lines of what has come out, and its end."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from torchtune_smt.core.resources import from_here
from torchtune_smt.core.weights import Weights
from torchtune_smt.metrics.base import Score
from torchtune_smt.runs.log import active_features
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report


def _bar(**options: Any) -> tqdm:
    return tqdm(file=sys.stderr, disable=None, **options)


class Console(Callback):
    """Shows bars on stderr, and prints what rounds and their parts have to say.

    sentences: those of a round, where steps come one after the other: one bar, with what they say,
        shows how many of all rounds are done. By default there is a bar for each long piece of
        work. There are bars on a terminal alone: a log has the lines that say what has come out.
    """

    def __init__(self, sentences: int | None = None) -> None:
        self._sentences = sentences
        # The bar, what it is about, and what it shows.
        self._bar: tqdm | None = None
        self._what = ""
        self._done = 0

    def on_start(self, run: Rounds) -> None:
        """Show how far all rounds are."""
        if self._sentences is not None:
            total, done = run.rounds * self._sentences, run.progress.sentences
            self._bar = _bar(total=total, initial=done, unit="sent", smoothing=0.05)

    def on_report(self, report: Report, run: Rounds) -> None:
        """Show a step, or print what is said of a part or a round."""
        if self._sentences is not None and self._bar is not None:
            self._bar.update(report.sentences)
            if report.kind == "step":
                where = f"{run.tuner.unit} {report.round}, {report.text}"
                self._bar.set_postfix_str(where, refresh=False)
        if report.kind != "step" and report.text:
            # In one piece: a signal between a line and its end would join the next one to it.
            tqdm.write(f"{report.text}\n", file=sys.stdout, end="")
            sys.stdout.flush()

    def on_work(self, what: str, done: int, total: int, unit: str) -> None:
        """Show how much of a piece of work is done."""
        if self._sentences is not None:
            return
        if self._what != what or done < self._done:
            self._close()
            self._what = what
            scale = unit == "step"
            self._bar = _bar(desc=what, total=total, unit=unit, unit_scale=scale, leave=False)
        if self._bar is not None:
            self._bar.update(done - self._done)
        self._done = done
        if done >= total:
            self._close()

    def on_end(self, run: Rounds) -> None:
        """End the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._what, self._done = None, "", 0


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
