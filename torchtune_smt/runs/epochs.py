"""Epochs of online tuning: evaluation after each, the best one kept, stopped and taken up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.state import DAMAGED, real, vector, whole
from torchtune_smt.tuners.objective import check_pairs
from torchtune_smt.tuners.online import BatchReport, OnlineTuner
from torchtune_smt.tuners.sentences import Sentences

Result = Literal["best", "last", "average"]


@dataclass
class Best:
    """The best epoch or iteration so far: its number, its score, its weights [D then].

    Number 0 is the start: the weights before the first one.
    """

    epoch: int
    score: float
    weights: torch.Tensor


@dataclass
class Progress:
    """How far tuning has come.

    Attributes
    ----------
    epoch : int
        Epoch, or iteration of a batch tuner, under way, from 1.
    batches : int
        Mini-batches done in it.
    sentences : int
        Sentences tuned on in all epochs.
    best : Best, optional
    total : tensor [D then], optional
        Sum of the weights at the ends of the epochs.
    stale_epochs : int
        Epochs since the best one, or since the start.
    records : int
        Lines that the run's log has so far; whoever writes one keeps count here.
    moved : float
        Of the last iteration: the largest change of a weight, as a share of the largest weight.
    last : float
        Score of the last epoch.
    """

    epoch: int = 1
    batches: int = 0
    sentences: int = 0
    best: Best | None = None
    total: torch.Tensor | None = None
    stale_epochs: int = 0
    records: int = 0
    moved: float = float("inf")
    last: float = float("nan")

    def note_start(self, score: float, weights: torch.Tensor) -> None:
        """Note the score of the weights before the first epoch: no worse ones are the best."""
        self.best = Best(0, score, weights.detach().clone())

    def compare(self, score: float, weights: torch.Tensor) -> None:
        """Note the score of the epoch under way, and its weights if they are the best so far."""
        self.last = score
        self.stale_epochs += 1
        if self.best is None or score > self.best.score:
            self.best = Best(self.epoch, score, weights.clone())
            self.stale_epochs = 0

    def is_stale(self, patience: int | None) -> bool:
        """Say whether so many epochs have gone by without a better one."""
        return patience is not None and self.stale_epochs >= patience


def check_progress(progress: Progress, dtype: torch.dtype, dimension: int) -> None:
    """Raise ValueError if progress that was saved is none.

    Parameters
    ----------
    progress : Progress
    dtype : torch.dtype
        Of weights.
    dimension : int
        How many weights there are at most.
    """
    epoch = whole(progress.epoch, 1)
    for count in (progress.batches, progress.sentences, progress.stale_epochs, progress.records):
        whole(count, 0)
    for number in (progress.moved, progress.last):
        if type(number) is not float:
            raise ValueError(DAMAGED)
    if progress.best is not None:
        whole(progress.best.epoch, 0, epoch)
        real(progress.best.score)
        vector(progress.best.weights, dtype, dimension)
    if progress.total is not None:
        vector(progress.total, dtype, dimension)


@dataclass(frozen=True)
class EpochSettings:
    """When tuning ends, and with which weights.

    Parameters
    ----------
    epochs : int
        At most.
    patience : int, optional
        Stop after this many epochs without a better score.
    result : {"best", "last", "average"}
        Weights of the epoch with the best score (or the start's, if its score is known and none is
        better), of the last one, or the mean of those at the ends of all epochs (Simianer et al.
        2012, Algorithm 1), or of what the optimizer averages.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    epochs: int = 10
    patience: int | None = None
    result: Result = "best"

    def __post_init__(self) -> None:
        check_ending("epochs", self.epochs, self.patience, self.result, get_args(Result))


def check_ending(
    unit: str, limit: int, patience: int | None, result: str, results: tuple[str, ...]
) -> None:
    """Raise ValueError if when tuning ends, or with which weights, is out of range.

    Parameters
    ----------
    unit : str
        What `limit` and `patience` count: epochs, or iterations.
    results : tuple of str
        What `result` may be.
    """
    if limit < 1:
        raise ValueError(f"{unit} must be at least 1, not {limit}")
    if patience is not None and patience < 1:
        raise ValueError(f"patience must be at least 1, or null, not {patience}")
    if result not in results:
        names = f"{', '.join(results[:-1])} or {results[-1]}"
        raise ValueError(f"result must be {names}, not {result!r}")


def tune(
    tuner: OnlineTuner,
    sentences: Sentences,
    settings: EpochSettings,
    evaluate: Callable[[], float],
    *,
    average: Callable[[], torch.Tensor] | None = None,
    progress: Progress | None = None,
    on_batch: Callable[[BatchReport, Progress], None] = lambda report, progress: None,
    on_epoch: Callable[[float, Progress], None] = lambda score, progress: None,
    save: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run epochs of online tuning and leave the resulting weights in place.

    Parameters
    ----------
    evaluate : callable
        Returns the score (larger is better) of the weights as they are; asked after each epoch.
    average : callable, optional
        Returns the optimizer's own average of the weights, for ``result="average"``.
    progress : Progress, optional
        Where an earlier run stopped; weights and optimizer are as they were then. Or one that has
        noted the score of the start, which is then a candidate for the best weights.
    on_batch, on_epoch : callable
        Told what happened.
    save : callable
        Called when the state may be saved: after each mini-batch, and after each epoch.

    Raises
    ------
    InputError
        The first epoch has found no pair to learn from.
    DivergenceError
        A gradient or a weight is not finite.
    """
    progress = progress or Progress()
    weights = tuner.weights
    while progress.epoch <= settings.epochs:
        if progress.is_stale(settings.patience):
            break
        pairs, begun = 0, progress.batches > 0
        for report in tuner.epoch(sentences, progress.epoch, progress.batches):
            pairs += report.pairs
            progress.batches = report.batch
            progress.sentences += report.sentences
            on_batch(report, progress)
            save(progress)
        # What there was of an epoch before it was taken up again is not known.
        if progress.epoch == 1 and not begun:
            check_pairs(pairs)
        tuner.optimizer.flush()
        tuner.optimizer.end_epoch()
        now = weights.parameter.detach()
        if not now.isfinite().all():
            raise DivergenceError(
                f"a weight is not finite after epoch {progress.epoch}: lower the learning rate, "
                "and check the feature values"
            )
        score = evaluate()
        progress.compare(score, now)
        if settings.result == "average" and average is None:
            total = weights.parameter.detach().clone()
            if progress.total is not None:
                total[: progress.total.numel()] += progress.total
            progress.total = total
        on_epoch(score, progress)
        progress.epoch += 1
        progress.batches = 0
        save(progress)
    if settings.result == "best" and progress.best is not None:
        set_weights(weights.parameter, progress.best.weights)
    elif settings.result == "average" and average is not None:
        set_weights(weights.parameter, average())
    elif settings.result == "average" and progress.total is not None:
        set_weights(weights.parameter, progress.total / (progress.epoch - 1))
    # The optimizer is done: nothing is put off for the weights that are read from now on.
    weights.before_read = None
    return progress


def set_weights(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Set the first weights to `values`; features that came later have none."""
    with torch.no_grad():
        parameter.zero_()
        parameter[: values.numel()] = values
