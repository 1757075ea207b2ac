"""Mixing the weights of shards (Simianer et al. 2012, Algorithms 2, 3 and 4)."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Final

import numpy as np

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.parallel.base import Strategy, Work
from torchtune_smt.parallel.columns import Columns
from torchtune_smt.parallel.partition import labelled_shards, random_shards
from torchtune_smt.parallel.shard_tuner import ShardTuner

SHARD_SIZE: Final = 1000
"""Sentences of a shard, about (Simianer et al. 2012)."""


class Mixing(Strategy):
    """Each shard tunes on its own for an epoch; then all weights become one.

    A subclass says by `combine` how. The optimizer of a shard begins anew when its weights do.

    Parameters
    ----------
    shards : int, optional
        Random shards, whose sizes differ by one at most; by default of about 1,000 sentences.
    labels : str, optional
        A file with a label in each line of the text that is tuned on: a shard for each label.

    Attributes
    ----------
    resends : bool
        Whether shards begin each epoch with the mixed weights, or go on with their own.

    Raises
    ------
    ValueError
        There are both, or no shards.
    """

    shards_data: ClassVar[bool] = True
    resends: ClassVar[bool] = True

    def __init__(self, shards: int | None = None, labels: str | None = None) -> None:
        if shards is not None and labels is not None:
            raise ValueError(
                f"labels={labels} says which shards there are, and so does shards={shards}; give "
                "one of them"
            )
        if shards is not None:
            check_whole("shards", shards, 1)
        self.shards = shards
        self.labels = labels

    @abstractmethod
    def combine(self, columns: Columns) -> Float64:
        """Return the mixed weights (float64 [D]) of an epoch, by the ids of `columns`."""

    def tuner(self, work: Work) -> ShardTuner:
        """Return the tuner whose rounds are epochs on all shards."""
        if self.labels is not None:
            found = labelled_shards(self.labels, work.lines, work.total_lines)
        else:
            sentences = len(work.sentences)
            shards = self.shards or max(1, round(sentences / SHARD_SIZE))
            parts = random_shards(sentences, shards, work.seed)
            found = {str(z): part for z, part in enumerate(parts, 1)}
        words = np.array([len(source.words) for source in work.sentences.sources])
        # The longest first: at the end of an epoch no worker waits long for another one.
        labels = sorted(found, key=lambda label: -int(words[found[label]].sum()))
        parts = [found[label] for label in labels]
        return ShardTuner(work.weights, work.sentences, parts, self, work.engine, labels)


class Mix(Mixing):
    """MixSGD, Algorithm 2: shards never hear of each other; what counts is the mean of all.

    The paper's result is the mean over the ends of all epochs, too: tuner.result=average. The state
    of each shard is kept here, so memory grows with their number.
    """

    resends: ClassVar[bool] = False

    def combine(self, columns: Columns) -> Float64:
        """Return the mean over shards."""
        return columns.mean()


class IterMix(Mixing):
    """IterMixSGD, Algorithm 3: the mean over shards after each epoch is where all go on from."""

    def combine(self, columns: Columns) -> Float64:
        """Return the mean over shards."""
        return columns.mean()


class IterSel(Mixing):
    """IterSelSGD, Algorithm 4: as `IterMix`, with the features alone that matter to most shards.

    A feature matters by the l2 norm of its column of W [shards, D]. Dense features always stay, and
    are not counted.

    Parameters
    ----------
    features : int, optional
        Keep so many sparse features, those of the largest norm; names decide between equal ones.
    threshold : float, optional
        Keep those of a norm above it.
    strength : float, optional
        Take the proximal step of strength · Σ_k ‖W[:, k]‖₂ instead: each column is shrunk by the
        factor max(0, 1 - strength / norm) before the mean is taken.
    shards, labels
        See `Mixing`.

    Raises
    ------
    ValueError
        Not exactly one of the three is given, or it is out of range.
    """

    def __init__(
        self,
        features: int | None = 100_000,
        threshold: float | None = None,
        strength: float | None = None,
        shards: int | None = None,
        labels: str | None = None,
    ) -> None:
        super().__init__(shards, labels)
        given = {"features": features, "threshold": threshold, "strength": strength}
        if sum(value is not None for value in given.values()) != 1:
            raise ValueError(
                "give one of features, threshold and strength, and set the others to null (there "
                f"are {', '.join(f'{name}={value}' for name, value in given.items())})"
            )
        if features is not None:
            check_whole("features", features, 1)
        for name in ("threshold", "strength"):
            value = given[name]
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite, 0 or more, not {value}")
        self.features = features
        self.threshold = threshold
        self.strength = strength

    def combine(self, columns: Columns) -> Float64:
        """Return the mean over shards of what is selected, 0 for the rest."""
        mixed, norm = columns.mean(), columns.norm()
        sparse = slice(columns.n_dense, None)
        if self.strength is not None:
            # A column of norm 0 has the mean 0.
            shrunk = np.maximum(norm[sparse] - self.strength, 0)
            mixed[sparse] *= shrunk / np.where(norm[sparse] > 0, norm[sparse], 1)
        elif self.threshold is not None:
            mixed[sparse][norm[sparse] <= self.threshold] = 0
        elif self.features is not None:
            mixed[sparse][~_largest(columns, norm[sparse], self.features)] = 0
        return mixed


def _largest(columns: Columns, norm: Float64, k: int) -> Bool:
    """Return which k sparse features have the largest norm; the first names of equal ones."""
    if np.count_nonzero(norm) <= k:
        positive: Bool = norm > 0
        return positive
    least = np.partition(norm, -k)[-k]
    chosen: Bool = norm > least
    ties: Int64 = np.flatnonzero(norm == least)
    names = columns.features.names(ties + columns.n_dense)
    by_name = sorted(range(ties.size), key=names.__getitem__)
    chosen[ties[by_name[: k - int(chosen.sum())]]] = True
    return chosen
