"""Expected errors of softmax: minimum risk for many features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from torchtune_smt.core.accepts import Checked, above, accepting, integer, least
from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.rows import Rows, numbered
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.order import scale_of
from torchtune_smt.kbest.stored_lists import names_in
from torchtune_smt.optim import AdaGrad
from torchtune_smt.optim.adapter import Shifted
from torchtune_smt.regularizers import L1
from torchtune_smt.tuners.gradient import Gradient
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.solver import Solution, check_start

# The part of the entropy that lists could have which they have under the weights of the start: that
# of lists of a speech recogniser under its own log probabilities.
SHARE: Final = 0.06
# A spread that is so small a part of a feature's size is rounding's.
ROUNDING: Final = 1e-10


@dataclass(frozen=True)
class ExpectedErrors(Checked):
    """The expected gain of softmax(W·H), the mean over lists, by AdaGrad from the start's weights.

    Smith and Eisner (2006), "Minimum risk annealing for training log-linear models". Inside,
    features are divided by their spread within lists, and gains by theirs; the start is multiplied
    by the number (``scale`` in the report) that gives lists 0.06 of the entropy that they could
    have. Weights are given back as features are, and in the start's scale. So nothing depends on
    the units of features, gains or the start, and since the loss is a mean, the strength means the
    same at any number of lists and of a step's lists: noise of any feature needs the same.

    lr, passes: of AdaGrad.
    batch_size: lists of a step.
    strength: of an l1 norm of the change from the start, in units of spreads.
    exempt: names of features that it does not pull at; by default those without a colon.
    """

    takes_gains: ClassVar[bool] = True

    accepts = accepting(lr=above(0), passes=integer(1), batch_size=integer(1), strength=least(0))

    lr: float = 0.1
    passes: int = 10
    batch_size: int = 100
    strength: float = 0.0
    exempt: Sequence[str] | None = None

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights; see `Solver.solve`. Features that are the same throughout keep theirs.

        Raises InputError: no list has hypotheses of different gains; or there is no feature of the
            name of an exempt one, or none that is not exempt.
        """
        check_start(lists, start)
        if lists.gain is None:
            raise InputError("the lists have no gains; see torchtune_smt.measured")
        active, rows = lists.rows.numbered()
        size = spread(lists.begin, rows, active.size)
        one = np.zeros(lists.n_hypotheses, np.int32)
        gain = Rows(np.arange(one.size + 1), one, lists.gain)
        gains = spread(lists.begin, gain, 1)[0]
        if not gains:
            raise InputError("no list has hypotheses of different gains: there is nothing to learn")
        exempt = self._exempt(lists, active)
        free = np.flatnonzero(size)
        free = free[np.argsort(~exempt[free], kind="stable")]
        column = np.full(active.size, -1)
        column[free] = np.arange(free.size)
        even = rows.scaled(1 / np.where(size > 0, size, 1)).renamed(column)
        inside = KBestLists(
            index=lists.index, begin=lists.begin, rows=even, gain=lists.gain / gains
        )
        begin = start[active[free]] * size[free]
        scale = scale_of(lists.begin, inside.rows.dot(begin), SHARE) or 1.0
        moved = Weights.without_names(scale * begin)
        norm, spared = L1(self.strength) if self.strength else None, int(exempt[free].sum())
        adagrad = AdaGrad([moved.parameter], self.lr, norm, unregularized=spared)
        optimizer = Shifted(adagrad, moved)
        learner = Learner(moved, optimizer)
        generator = np.random.default_rng(seed)
        several = np.flatnonzero(np.diff(lists.begin) > 1)
        loss = 0.0
        for _ in range(self.passes):
            order = generator.permutation(several)
            loss = 0.0
            for at in range(0, order.size, self.batch_size):
                some = inside.some(order[at : at + self.batch_size])
                found = expected_gradient(some, learner.snapshot())
                learner.apply(found)
                loss += found.loss * found.count / order.size
        optimizer.flush()
        change = optimizer.change.detach().numpy()
        weights = start.copy()
        # What has not moved keeps its bits.
        weights[active[free]] += change / (scale * size[free])
        return Solution(weights, {"loss": loss * gains, "lists": several.size, "scale": scale})

    def _exempt(self, lists: KBestLists, active: Int64) -> Bool:
        if lists.features is None:
            return np.zeros(active.size, np.bool_)
        names = lists.features.names(range(len(lists.features)))
        given = [name for name in names if ":" not in name]
        if self.exempt is not None:
            given = names_in(lists.features, list(self.exempt))
        for name in given:
            if name not in lists.features:
                raise InputError(f"exempt: no feature is {name!r}{did_you_mean(name, names)}")
        if self.strength and len({*given}) == len(names):
            raise InputError(
                f"strength={self.strength:g} would change nothing: all features are exempt; name "
                "those that are to be, with exempt=[...]"
            )
        own = lists.features.lookup(given)
        return np.isin(active, own)


def expected_gradient(lists: KBestLists, snapshot: Snapshot) -> Gradient:
    """Return the gradient of -E[gain] under softmax(W·H), the mean over lists; none is empty.

    That of `torchtune_smt.losses.ExpectedGain`, in closed form.
    """
    assert lists.gain is not None
    feature, rows = lists.rows.numbered()
    score = rows.dot(snapshot.read(None, feature))
    first, length = lists.begin[:-1], np.diff(lists.begin)
    p = np.exp(score - np.repeat(np.maximum.reduceat(score, first), length))
    p /= np.repeat(np.add.reduceat(p, first), length)
    mean = np.add.reduceat(p * lists.gain, first)
    slope = p * (np.repeat(mean, length) - lists.gain) / length.size
    each = np.repeat(slope, np.diff(rows.begin)) * rows.value
    value: Float64 = np.asarray(np.bincount(rows.feature, each, feature.size), np.float64)
    loss = -float(mean.mean())
    return Gradient(feature, value, None, snapshot.version, loss, length.size)


def spread(begin: Int64, rows: Rows, columns: int) -> Float64:
    """Return the spread of each feature (float64 [columns]) within lists, of which begin is given.

    It is the root of the mean square of what it differs by from its mean in the list; 0 where that
    is nothing but rounding. O(non-zeros log non-zeros).
    """
    length = np.diff(begin)
    owner = np.repeat(np.repeat(np.arange(length.size), length), np.diff(rows.begin))
    group, place = numbered(owner * columns + rows.feature)
    of, size = group % columns, length[group // columns].astype(np.float64)
    count = np.bincount(place, minlength=group.size)
    mean = np.bincount(place, rows.value, group.size) / size
    squares = np.bincount(rows.feature, (rows.value - mean[place]) ** 2, columns)
    squares += np.bincount(of, (size - count) * mean**2, columns)
    total = np.bincount(rows.feature, rows.value**2, columns)
    found = np.sqrt(squares / max(len(rows), 1))
    return np.where(squares > ROUNDING**2 * total, found, 0.0)
