"""Tuning by groups of features (Liu et al., 2013, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.state import DAMAGED, vector, well_formed, whole
from torchtune_smt.kbest.flat_lists import FlatLists
from torchtune_smt.runs.epochs import Best, Progress, check_ending, check_progress, set_weights
from torchtune_smt.samplers.pairs import PairSampler
from torchtune_smt.tuners.batch import (
    IterationReport,
    IterationSettings,
    PairSolver,
    Result,
    Solution,
    Solver,
    tune_batch,
    wants_pairs,
)
from torchtune_smt.tuners.collect import Collector
from torchtune_smt.tuners.feature_groups import FeatureGroups, ZeroGroup, check_zero_group
from torchtune_smt.tuners.learn_groups import GroupLearning, count_features, learn_groups


@dataclass(frozen=True)
class GroupedSolver:
    """Finds one weight for each group of features, with a solver that sees groups as features.

    Parameters
    ----------
    solver : Solver
    groups : FeatureGroups
        Features in none of them get weight 0.
    """

    solver: Solver
    groups: FeatureGroups

    @property
    def takes_pairs(self) -> bool:
        """Whether the solver needs no more than pairs."""
        return wants_pairs(self.solver)

    @property
    def sampler(self) -> PairSampler:
        """What chooses the pairs of such a solver."""
        return cast(PairSolver, self.solver).sampler

    def solve(self, lists: FlatLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights of single features; see `Solver.solve`."""
        groups = self.groups
        projected = lists.projected(groups.rename(lists.dimension), len(groups))
        solution = self.solver.solve(projected, groups.mean(start), seed)
        return Solution(groups.unpack(solution.weights, lists.dimension), solution.report)

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights of single features; see `PairSolver.solve_pairs`."""
        groups = self.groups
        projected = pairs.projected(groups.rename(start.size), len(groups))
        solution = cast(PairSolver, self.solver).solve_pairs(projected, groups.mean(start), seed)
        return Solution(groups.unpack(solution.weights, start.size), solution.report)


@dataclass(frozen=True)
class GroupingSettings:
    """When tuning by groups ends, and with which weights.

    Parameters
    ----------
    iterations : int
        T, at most.
    patience : int, optional
        Stop after this many iterations without a better score.
    result : {"best", "last"}
        Weights of the iteration with the best score (or the start's, if its score is known and none
        is better), or of the last one.
    zero_group : {"drop", "keep"}
        Features that occur in the lists, and to which OSCAR gave weight 0: in no group, as in the
        paper, or one more group, all together.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    iterations: int = 15
    patience: int | None = 3
    result: Result = "best"
    zero_group: ZeroGroup = "drop"

    def __post_init__(self) -> None:
        check_ending("iterations", self.iterations, self.patience, self.result, get_args(Result))
        check_zero_group(self.zero_group)


@dataclass(frozen=True)
class LearningReport:
    """How groups were learnt.

    Attributes
    ----------
    iteration : int
        From 1.
    groups : FeatureGroups
    hypotheses, new : int
        In the lists that they were learnt from; of these, those that came last.
    bleu : float
        Corpus BLEU of the sentences that were decoded for it.
    pairs, steps : int
    loss : float
        See `Learned.loss`.
    dimension : int
        d.
    decoding, learning : float
        Wall-clock seconds.
    """

    iteration: int
    groups: FeatureGroups
    hypotheses: int
    new: int
    bleu: float
    pairs: int
    steps: int
    loss: float
    dimension: int
    decoding: float
    learning: float


@dataclass(frozen=True)
class GroupingReport:
    """What one iteration did.

    Attributes
    ----------
    iteration : int
        From 1.
    groups : FeatureGroups
    group_weights : float64 [groups]
        Tuned on dev.
    score : float
        Of these weights on dev.
    fits : int
        Iterations of the tuner on dev.
    tuning : float
        Wall-clock seconds of it, in this process.
    kept : bool
        Whether tuning would have these weights as its result if it ended now.
    """

    iteration: int
    groups: FeatureGroups
    group_weights: Float64
    score: float
    fits: int
    tuning: float
    kept: bool


class GroupingTuner:
    """Algorithm 1 of Liu et al. (2013).

    Iteration i decodes the training sentences with W^i, adds to their lists, learns groups from
    pairs of them, and tunes a weight for each group on dev by a whole run of another tuner, which
    starts at the mean of W^i in each group. W^{i+1} has for each feature the weight of its group.
    Lists of dev are accumulated over all iterations, with single features.

    Parameters
    ----------
    train, dev : Collector
        Of one decoder and its weights, with lists of their own.
    sampler : PairSampler
        Chooses the pairs that groups are learnt from.
    learning : GroupLearning
        Without a dimension of its own, d is the number of sparse features that occur in the lists
        of the training sentences, or have a weight.
    solver : Solver
        Finds the weights of groups on dev; PRO in the paper.
    settings : GroupingSettings
    inner : IterationSettings
        Of the runs on dev; the best of the weights of each are taken, its start among them.
    seed : int
    """

    def __init__(
        self,
        train: Collector,
        dev: Collector,
        sampler: PairSampler,
        learning: GroupLearning,
        solver: Solver,
        settings: GroupingSettings,
        inner: IterationSettings,
        *,
        seed: int = 0,
    ) -> None:
        self.train = train
        self.dev = dev
        self.sampler = sampler
        self.learning = learning
        self.solver = solver
        self.settings = settings
        self.inner = inner
        self.seed = seed
        self.weights = dev.weights
        # Of the iteration under way, once it has some, and how far the run on dev has come.
        self._groups: FeatureGroups | None = None
        self._tuned = Progress()
        # Iterations of the dev lists that were there before this run on dev.
        self._earlier = 0

    def tune(
        self,
        progress: Progress | None = None,
        *,
        on_steps: Callable[[int, int], None] = lambda done, steps: None,
        on_learned: Callable[[LearningReport, Progress], None] = lambda report, progress: None,
        on_fit: Callable[[IterationReport, Progress], None] = lambda report, progress: None,
        on_iteration: Callable[[GroupingReport, Progress], None] = lambda report, progress: None,
        save: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Run the iterations and leave the resulting weights in place.

        Parameters
        ----------
        progress : Progress, optional
            Where an earlier run stopped; weights and state are as they were then. Or one that has
            noted the score of the start.
        on_steps, on_learned, on_fit, on_iteration : callable
            Told what happened: steps of Algorithm 2, groups learnt, an iteration of the tuner on
            dev, all of an iteration.
        save : callable
            Called when the state may be saved: after groups were learnt, and after each fit.

        Raises
        ------
        InputError
            There are no sparse features to group, or no pairs.
        DivergenceError
            A weight is not finite.
        """
        progress = progress or Progress()
        settings = self.settings
        while progress.epoch <= settings.iterations and not progress.is_stale(settings.patience):
            if self._groups is None:
                report = self._learn(progress.epoch, on_steps)
                self._groups = report.groups
                progress.sentences += len(self.train.sentences)
                on_learned(report, progress)
                save(progress)
            begin = time.perf_counter()
            self._tune_dev(self._groups, progress, on_fit, save)
            on_iteration(self._compare(self._groups, progress, begin), progress)
            self._groups, self._tuned = None, Progress()
            progress.epoch += 1
            save(progress)
        if settings.result == "best" and progress.best is not None:
            self.weights.grow()
            set_weights(self.weights.parameter, progress.best.weights)
        return progress

    def state_dict(self) -> dict[str, Any]:
        """Return what there is besides weights and `Progress`; the lists are in their folders."""
        groups, tuned = self._groups, self._tuned
        best = tuned.best
        return {
            "train": self.train.lists.state_dict(),
            "dev": self.dev.lists.state_dict(),
            "earlier": self._earlier,
            # Few features have a group, or a weight.
            "groups": None if groups is None else _packed(groups.group + 1),
            "tuned": (tuned.epoch, tuned.sentences, tuned.stale_epochs, tuned.moved),
            "best": None
            if best is None
            else (best.epoch, best.score, _packed(best.weights.numpy())),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave.

        Raises
        ------
        ValueError
            The lists have fewer iterations, or the groups do not fit.
        """
        dimension = len(self.weights.features)
        with well_formed():
            groups, best = state_dict["groups"], state_dict["best"]
            learnt = None
            if groups is not None:
                # From 1; 0 is none. There are no more groups than features.
                numbers = _unpacked(groups, torch.int64, dimension)
                if numbers.size and not 0 <= numbers.min() <= numbers.max() <= dimension:
                    raise ValueError(DAMAGED)
                learnt = FeatureGroups(numbers - 1, self.weights.n_dense)
            epoch, sentences, stale, moved = state_dict["tuned"]
            if best is not None:
                number, score, values = best
                values = _unpacked(values, self.weights.parameter.dtype, dimension)
                best = Best(number, score, torch.from_numpy(values))
            tuned = Progress(
                epoch=epoch, sentences=sentences, stale_epochs=stale, moved=moved, best=best
            )
            check_progress(tuned, self.weights.parameter.dtype, dimension)
            if best is None and tuned.epoch > 1:
                raise ValueError(DAMAGED)
            earlier = whole(state_dict["earlier"], 0)
            train, dev = state_dict["train"], state_dict["dev"]
        self.train.lists.load_state_dict(train)
        self.dev.lists.load_state_dict(dev)
        if earlier > self.dev.lists.n_iterations:
            raise ValueError(DAMAGED)
        self._earlier, self._groups, self._tuned = earlier, learnt, tuned

    def _learn(self, iteration: int, on_steps: Callable[[int, int], None]) -> LearningReport:
        """Decode the training sentences, learn groups, and start the run on dev from W^i."""
        weights, lists = self.weights, self.train.lists
        collected = self.train.collect()
        begin = time.perf_counter()
        weights.grow()
        start: Float64 = weights.parameter.detach().numpy().copy()
        n_dense = weights.n_dense
        if start.size == n_dense:
            raise InputError(
                "there are no sparse features that could be grouped: choose some, as "
                "features=rule_id does, or tune with tuner=pro"
            )
        lists.require(start.size)
        learning = self.learning
        if learning.regularizer.dimension is None:
            # Not D: decoding dev, and whatever else is evaluated, must not change what is learnt.
            dimension = count_features(start, n_dense, lists.features())
            oscar = replace(learning.regularizer, dimension=dimension)
            learning = replace(learning, regularizer=oscar)
        pairs = lists.pair_rows(self.sampler, (self.seed, iteration, 1))
        learned = learn_groups(pairs, start, n_dense, learning, (self.seed, iteration, 2), on_steps)
        keep = None
        if self.settings.zero_group == "keep":
            keep = np.zeros(start.size, np.bool_)
            keep[lists.features()] = True
        groups = FeatureGroups.of(learned.blocks, n_dense, keep_zeros=keep)
        unpacked = groups.unpack(groups.mean(start), start.size)
        set_weights(weights.parameter, torch.from_numpy(unpacked))
        self._earlier = self.dev.lists.n_iterations
        return LearningReport(
            iteration,
            groups,
            lists.n_hypotheses,
            collected.new,
            collected.bleu,
            len(pairs),
            learned.steps,
            learned.loss,
            learned.dimension,
            collected.seconds,
            time.perf_counter() - begin,
        )

    def _tune_dev(
        self,
        groups: FeatureGroups,
        progress: Progress,
        on_fit: Callable[[IterationReport, Progress], None],
        save: Callable[[Progress], None],
    ) -> None:
        """Tune the weights of groups on dev: a whole run, or the rest of one."""
        before = progress.sentences - self._tuned.sentences

        def note(report: IterationReport, tuned: Progress) -> None:
            progress.sentences = before + tuned.sentences
            on_fit(report, progress)

        self._tuned = tune_batch(
            self.dev,
            GroupedSolver(self.solver, groups),
            self.inner,
            None,
            seed=self.seed,
            earlier=self._earlier,
            progress=self._tuned,
            on_iteration=note,
            save=lambda tuned: save(progress),
        )

    def _compare(self, groups: FeatureGroups, progress: Progress, begin: float) -> GroupingReport:
        """Note the score of an iteration, and its weights if they are the best so far."""
        weights, tuned = self.weights, self._tuned
        assert tuned.best is not None
        score = tuned.best.score
        progress.compare(score, weights.parameter.detach())
        best = progress.stale_epochs == 0
        return GroupingReport(
            progress.epoch,
            groups,
            groups.pack(weights.parameter.detach().numpy()),
            score,
            tuned.epoch - 1,
            time.perf_counter() - begin,
            best or self.settings.result == "last",
        )


def _packed(values: NDArray[Any]) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the length of a vector, and the places and values of what is not 0 in it."""
    places = np.flatnonzero(values)
    return values.size, torch.from_numpy(places), torch.from_numpy(values[places])


def _unpacked(packed: Sequence[Any], dtype: torch.dtype, longest: int) -> NDArray[Any]:
    """Return the vector that `_packed` was given; raise ValueError if it was given none."""
    size, places, values = packed
    whole(size, 0, longest)
    places = vector(places, torch.int64, size).numpy()
    values = vector(values, dtype, size).numpy()
    if places.size != values.size or (places.size and not 0 <= places.min() <= places.max() < size):
        raise ValueError(DAMAGED)
    result = np.zeros(size, values.dtype)
    result[places] = values
    return result
