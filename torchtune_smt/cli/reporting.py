"""What `train` shows and writes down of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from torchtune_smt.core.weights import Weights
from torchtune_smt.metrics.corpus import CorpusScore
from torchtune_smt.runs.epochs import Progress
from torchtune_smt.runs.log import RunLog, active_features
from torchtune_smt.tuners.batch import IterationReport
from torchtune_smt.tuners.online import BatchReport

Scored = tuple[CorpusScore, list[str]]
"""Corpus BLEU and the translations."""


class Reporter:
    """Progress bar, log and messages of a tuning run.

    Parameters
    ----------
    log : RunLog
    weights : Weights
    total : int
        Sentences to be tuned on in all epochs.
    done : int
        Of these, those of an earlier run.
    """

    def __init__(self, log: RunLog, weights: Weights, total: int, done: int) -> None:
        self._log = log
        self._weights = weights
        self._bar = _bar(total, done)

    def batch(self, report: BatchReport, progress: Progress, lr: float) -> None:
        """Record a mini-batch."""
        self._bar.update(report.sentences)
        self._bar.set_postfix_str(f"epoch {report.epoch}, gain {report.gain:.4f}", refresh=False)
        outside = (report.seconds - report.decoding) / report.sentences
        self._log.scalars(
            progress.sentences,
            {
                "train/loss": report.loss,
                "train/gain": report.gain,
                "train/pairs": report.pairs,
                "train/lr": lr,
                "speed/sentences_per_second": report.sentences / report.seconds,
                "speed/milliseconds_outside_decoding": 1e3 * outside,
            },
        )

    def epoch(self, score: float, progress: Progress) -> None:
        """Record an epoch and its dev score."""
        self._log.scalars(progress.sentences, {"bleu/dev": score})
        self._log.weights(progress.sentences, self._weights)
        active = sum(active_features(self._weights).values())
        self._bar.write(
            f"epoch {progress.epoch}: dev BLEU {score:.2f}, {active:,} active features",
            file=sys.stdout,
        )
        sys.stdout.flush()

    def close(self) -> None:
        """End the progress bar."""
        self._bar.close()


class BatchReporter:
    """Progress bar, log and messages of a batch tuner.

    Parameters
    ----------
    log : RunLog
    weights : Weights
    sentences : int
        Sentences that are decoded in each iteration.
    """

    def __init__(self, log: RunLog, weights: Weights, sentences: int) -> None:
        self._log = log
        self._weights = weights
        self._sentences = sentences
        self._bar = _bar(sentences)

    def decoded(self, sentences: int) -> None:
        """Show that so many more sentences have been decoded."""
        if self._bar.n == self._sentences:
            self._bar.reset()
        self._bar.update(sentences)

    def iteration(self, report: IterationReport, progress: Progress, dimension: int | None) -> None:
        """Record an iteration; `dimension`: OSCAR's d, if it has taken part."""
        oscar = {} if dimension is None else {"oscar/dimension": dimension}
        self._log.scalars(
            progress.sentences,
            {
                "bleu/dev": report.score,
                "lists/hypotheses": report.hypotheses,
                "lists/new": report.new,
                **{f"fit/{name}": value for name, value in report.fit.items()},
                "fit/moved": progress.moved,
                **oscar,
                "speed/seconds": report.seconds,
                "speed/seconds_fitting": report.fitting,
            },
        )
        self._log.weights(progress.sentences, self._weights)
        active = sum(active_features(self._weights).values())
        self._bar.write(
            f"iteration {report.iteration}: dev BLEU {report.score:.2f}, {report.new:,} new "
            f"hypotheses of {report.hypotheses:,}, {active:,} active features, "
            f"{report.seconds:.0f} s{'' if dimension is None else f', d = {dimension:,}'}",
            file=sys.stdout,
        )
        sys.stdout.flush()

    def close(self) -> None:
        """End the progress bar."""
        self._bar.close()


def _bar(total: int, done: int = 0) -> Any:
    """Return a progress bar over sentences."""
    return tqdm(
        total=total,
        initial=done,
        unit="sent",
        file=sys.stderr,
        smoothing=0.05,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,
    )


def gained_nothing(unit: str, advice: str, result: str, weights: Weights) -> str:
    """Return what is said where dev is no better than before.

    Parameters
    ----------
    unit, advice : str
        Those of the `TuningRun`.
    result : str
        ``tuner.result``.
    weights : Weights
        Those of the result.
    """
    if result == "best":
        what = f"no {unit} was better on dev than the start, and its weights are kept"
        if not weights.parameter.any():
            what += " (all are 0: they rank nothing, and leave lists in the order they come in)"
    else:
        what = (
            f"dev BLEU is no better than before; tuner.result=best keeps the start if no {unit} is"
        )
    return f"tuning has gained nothing: {what}; try {advice} (docs/errors.md)"


def summary(
    before: dict[str, float],
    after: dict[str, Scored],
    weights: Weights,
    reached: Sequence[str],
    start: float,
) -> str:
    """Return what came out as a table and some lines."""
    lines = [f"{'BLEU':<6}{'before':>8}{'after':>8}{'gain':>8}"]
    for name, (score, _) in after.items():
        old, new = before[name], score.score
        lines.append(f"{name:<6}{old:>8.2f}{new:>8.2f}{new - old:>+8.2f}")
    active = active_features(weights)
    parts = ", ".join(f"{count:,} {name}" for name, count in sorted(active.items()))
    lines += [
        f"signature: {after['dev'][0].signature}",
        *reached,
        f"active features: {sum(active.values()):,} ({parts})",
        f"time: {time.perf_counter() - start:.0f} s",
    ]
    return "\n".join(lines)


def contents(folder: Path) -> str:
    """Return what lies in a run folder, a line a file."""
    lines = []
    for name, what in {
        "weights.txt.gz": "tuned weights, name and value a line",
        "groups.tsv.gz": "groups of features: number, weight, size, and a feature, a line each",
        "dev.translations.txt": "translations with the tuned weights",
        "test.translations.txt": "translations with the tuned weights",
        "lists": "k-best lists of all iterations",
        "metrics.jsonl": "everything measured, a line each",
        "config.yaml": "the configuration, resolved",
    }.items():
        if (folder / name).exists():
            lines.append(f"{folder / name}: {what}")
    return "\n".join([*lines, f"tensorboard --logdir {folder}"])
