"""Tuning by groups of features (Liu et al., 2013, Algorithm 1), and the ways to learn them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import numpy as np
import torch

from torchtune_smt.core.accepts import Rule, accepting, one_of, rules_of
from torchtune_smt.core.archive import DAMAGED, well_formed
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.checks import check_device
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.state import vector
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.metrics.base import Score
from torchtune_smt.minimizer import Accuracy, SmoothedHinge
from torchtune_smt.regularizers import Oscar
from torchtune_smt.samplers import PairSampler, pair_rows, shuffled_gains
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.batch import BatchTuner, Collector
from torchtune_smt.tuners.grouping.base import GroupLearner, Problem
from torchtune_smt.tuners.grouping.controls import (
    CONTROLS,
    ClusteredWeights,
    RandomPairs,
    controlled,
)
from torchtune_smt.tuners.grouping.groups import FeatureGroups, ZeroGroup
from torchtune_smt.tuners.grouping.minimum import MINIMIZER_LOSSES, BatchLearning, minimizer_loss
from torchtune_smt.tuners.grouping.prepared import PreparedLearning
from torchtune_smt.tuners.grouping.steps import (
    Compute,
    GroupLearning,
    MixedLearning,
    count_features,
)
from torchtune_smt.tuners.solver import PairSolver, Solution, Solver, checked_solution, wants_pairs

if TYPE_CHECKING:
    from torchtune_smt.runs.rounds import Rounds


@dataclass(frozen=True)
class GroupedSolver:
    """Finds one weight for each group of features, with a solver that sees groups as features.

    groups: features in none of them get weight 0; or what returns them, given the weights so far.
    """

    solver: Solver
    groups: FeatureGroups | Callable[[Float64], FeatureGroups]

    @property
    def takes_pairs(self) -> bool:
        """See `PairSolver`."""
        return wants_pairs(self.solver)

    @property
    def sampler(self) -> PairSampler:
        """See `PairSolver`."""
        return cast(PairSolver, self.solver).sampler

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """See `Solver`; weights are those of single features."""

        def solve(rows: Rows, begin: Float64) -> Solution:
            return self.solver.solve(replace(lists, rows=rows, features=None), begin, seed)

        return self._unpacked(lists.rows, start, solve)

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """See `PairSolver`; weights are those of single features."""
        solver = cast(PairSolver, self.solver)
        return self._unpacked(pairs, start, lambda rows, w: solver.solve_pairs(rows, w, seed))

    def _unpacked(
        self, rows: Rows, start: Float64, solve: Callable[[Rows, Float64], Solution]
    ) -> Solution:
        groups = self.groups(start) if callable(self.groups) else self.groups
        solution = solve(groups.project(rows, start.size), groups.mean(start))
        found = checked_solution(solution, self.solver, len(groups))
        return replace(found, weights=groups.unpack(found.weights, start.size))


def scale_solver(solver: Solver, n_dense: int) -> GroupedSolver:
    """Return what finds dense weights, and one factor of all sparse ones, which keep their ratios.

    To the solver, Σ_j w_j H_j over sparse features is one feature, whose weight is 1 at the start
    of each iteration.
    """

    def groups(start: Float64) -> FeatureGroups:
        together = np.where(start != 0.0, 0, -1)
        factor = np.where(start != 0.0, start, 1.0)
        factor[:n_dense] = 1.0
        return FeatureGroups.of(together, n_dense, factor=factor)

    return GroupedSolver(solver, groups)


# Features that a message names, at most.
SHOWN: Final = 5
# How the minimiser, which knows no names, calls a feature.
_NUMBERED: Final = re.compile(r"^dense feature (\d+)\b")


@dataclass(eq=False, repr=False)
class GroupingTuner(Tuner):
    """Algorithm 1 of Liu et al. (2013).

    Iteration i decodes the training sentences with W^i, adds to their lists, learns groups from
    pairs of them, and tunes a weight for each group on dev by a whole run of a batch tuner, which
    starts at the mean of W^i in each group. W^{i+1} has for each feature the weight of its group.
    Lists of dev are accumulated over all iterations, with single features.

    train: of the training sentences.
    dev: of a `BatchTuner`, with lists of dev, the same weights, and a solver that finds the weights
        of groups (PRO in the paper): its run on dev, whose score is `BatchTuner.score`, and whose
        result is the best, its start among them.
    sampler: chooses the pairs that groups are learnt from.
    learning: without a dimension of its own, d is the number of sparse features that occur in the
        lists of the training sentences, or have a weight.
    zero_group: features that occur in the lists, and to which OSCAR gave weight 0: in no group, as
        in the paper, or one more group, all together.
    control: what is taken from the groups, to see whether it matters; see `controlled`.
    """

    advice = "another regularizer.lambda2, more sentences, longer lists or tuner=pro"

    accepts = accepting(zero_group=one_of(*get_args(ZeroGroup)), control=one_of(*CONTROLS))

    train: Collector
    dev: Rounds
    sampler: PairSampler
    learning: GroupLearner
    _: KW_ONLY
    zero_group: ZeroGroup = "drop"
    control: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights = self.train.weights
        self._batch = cast(BatchTuner, self.dev.tuner)
        self._solver = self._batch.solver
        # Of the last iteration that is over, and of the one under way, once it has some.
        self.groups: FeatureGroups | None = None
        self._learnt: FeatureGroups | None = None
        self._begin = 0.0

    def score(self) -> Score:
        """Return the score of dev, which tuning on it has told if that is BLEU; else decode it."""
        best, collector = self.dev.progress.best, self._batch.collector
        if best is None or collector.measure != BLEU:
            return collector.score()
        return Score(best.score, best.score)

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Learn groups, which is a part, and tune them on dev, each of whose rounds is a step.

        Raises InputError: there are no sparse features to group, or no pairs.
        """
        self._batch.show = self.show
        if self._learnt is None:
            yield self._learn(number)
        assert self._learnt is not None
        self._begin = time.perf_counter()
        self._batch.solver = GroupedSolver(self._solver, self._learnt)
        for report in self.dev.steps():
            if report.kind == "round":
                yield _step(report, len(self._batch.collector.sentences))

    def summary(self, kept: bool) -> Report:
        """Return what the iteration did; its groups are `groups` now."""
        assert self._learnt is not None
        groups, self.groups, self._learnt = self._learnt, self._learnt, None
        values = self.weights.parameter.detach().numpy()
        active = int(np.count_nonzero(groups.pack(values)[groups.n_dense :]))
        single, seconds = int(np.count_nonzero(values)), time.perf_counter() - self._begin
        text = (
            f"{self.dev.progress.round - 1} fits {seconds:.0f} s; {active:,} active groups, "
            f"{single:,} active features{'' if kept else ' (not kept)'}"
        )
        return Report("round", {"groups/active": active, "seconds/tuning": seconds}, text)

    def state_dict(self) -> dict[str, Any]:
        """Return what there is besides weights; the lists are in their folders."""
        parts = (None, None) if self._learnt is None else (self._learnt.group, self._learnt.factor)
        groups, factors = (None if part is None else torch.from_numpy(part) for part in parts)
        return {
            "train": self.train.lists.state_dict(),
            "dev": self.dev.state_dict(),
            "groups": groups,
            "factors": factors,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `Tuner`; the lists must be those of the run, and the groups fit."""
        # There are no more groups than features.
        dimension, learnt = len(self.weights.features), None
        with well_formed():
            names = ("groups", "factors", "train", "dev")
            groups, factors, train, dev = (state_dict[name] for name in names)
            if groups is not None:
                numbers = vector(groups, torch.int64, dimension).numpy()
                if numbers.size and not -1 <= numbers.min() <= numbers.max() < dimension:
                    raise ValueError(DAMAGED)
                if factors is not None:
                    factors = vector(factors, torch.float64, dimension).numpy()
                learnt = FeatureGroups(numbers, self.weights.n_dense, factors)
        self.dev.load_state_dict(dev)
        self.train.lists.load_state_dict(train)
        self._learnt = learnt

    def _learn(self, number: int) -> Report:
        """Decode the training sentences, learn groups, and begin a run on dev from W^i."""
        weights, lists = self.weights, self.train.lists
        collected = self.train.collect(self.show)
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
        seed = (self.seed, number)
        pairs = pair_rows(lists, self.sampler, (*seed, 1))

        def noise(draw: int) -> Rows:
            """Return pairs as those are, of gains that say nothing of sparse features."""
            shuffled = (shuffled_gains(kbest, (*seed, 7, draw), n_dense) for kbest in lists)
            return pair_rows(shuffled, self.sampler, (*seed, 8, draw))

        problem = Problem(pairs, start, n_dense, seed, self.show)
        others = partial(pair_rows, lists, self.sampler, (*seed, 6))
        learned = learning.calibrated(noise, problem).learn(problem, others)
        keep = None
        if self.zero_group == "keep":
            keep = np.zeros(start.size, np.bool_)
            keep[lists.features()] = True
        blocks = controlled(learned.blocks, self.control, pairs, n_dense, (*seed, 4))
        groups = FeatureGroups.of(blocks, n_dense, keep_zeros=keep, factor=learned.factor)
        unpacked = groups.unpack(groups.mean(start), start.size)
        weights.parameter.data[:] = torch.from_numpy(unpacked)
        self._learnt = groups
        self._batch.begin()
        self.dev.begin()
        sizes = groups.sizes[n_dense:]
        seconds = time.perf_counter() - begin
        said = [
            f"{lists.n_hypotheses:,} hypotheses ({collected.new:,} new), {len(pairs):,} pairs, "
            f"d = {learned.dimension:,}; decoding {collected.seconds:.0f} s, {learned.text} "
            f"{seconds:.0f} s",
            f"{groups.n_sparse:,} groups of {sizes.sum():,} features, the largest has "
            f"{sizes.max():,}, {np.count_nonzero(sizes == 1):,} have one"
            if sizes.size
            else f"no groups, so the default features are tuned alone: {learned.why_none}",
            *(_with_names(remark, weights.features) for remark in learned.remarks),
        ]
        if learned.boundary.size:
            names = weights.features.names(learned.boundary[:SHOWN])
            said.append(
                f"{learned.boundary.size:,} features are at the boundary: with a smaller "
                "tuner.minimizer.residual they may be in another group, or in none: "
                f"{', '.join(names)}{', ...' if learned.boundary.size > SHOWN else ''}"
            )
        numbers = {
            "groups/number": groups.n_sparse,
            "groups/features": int(sizes.sum()),
            "groups/largest": int(sizes.max(initial=0)),
            "groups/single": int(np.count_nonzero(sizes == 1)),
            "oscar/dimension": learned.dimension,
            "oscar/pairs": len(pairs),
            **learned.numbers,
            "lists/hypotheses": lists.n_hypotheses,
            "lists/new": collected.new,
            "bleu/learning": collected.score.bleu,
            "seconds/decoding": collected.seconds,
            "seconds/learning": seconds,
        }
        text = "\n".join(f"iteration {number}: {line}" for line in said)
        return Report("part", numbers, text, len(self.train.sentences))


def _step(report: Report, sentences: int) -> Report:
    """Return what an iteration of the tuner on dev did, as a step of this one."""
    given = report.numbers
    names = {"bleu": "bleu/dev", "hypotheses": "lists/hypotheses", "new": "lists/new"}
    names["seconds"] = "speed/seconds"
    numbers = {f"fit/{name}": given[source] for name, source in names.items()}
    own = {n: v for n, v in given.items() if n.startswith("fit/") and n != "fit/moved"}
    return Report("step", numbers | own, sentences=sentences)


def _with_names(remark: str, features: Vocabulary) -> str:
    """Return a remark of the minimiser with the name of the dense feature that it begins with."""
    return _NUMBERED.sub(lambda found: f"the dense feature {features[int(found[1])]}", remark)


LEARNERS: Final[dict[str, type[GroupLearner]]] = {
    "online": GroupLearning,
    "mix": MixedLearning,
    "batch": BatchLearning,
    "random_pairs": RandomPairs,
    "clusters": ClusteredWeights,
}


def option_rules(tuner: type) -> dict[str, Rule]:
    """Return what options may be that a tuner's class, or what learns groups, takes, by name."""
    owners = {
        "tuner": (PreparedLearning, *LEARNERS.values(), tuner),
        "tuner.dev": (BatchTuner,),
        "tuner.minimizer": (BatchLearning, SmoothedHinge, Accuracy),
        "tuner.clusters": (ClusteredWeights,),
        "regularizer": (BatchLearning,),
    }
    rules = {
        f"{holder}.{name}": rule
        for holder, kinds in owners.items()
        for kind in kinds
        for name, rule in rules_of(kind).items()
    }
    rules["tuner.minimizer.loss"] = MINIMIZER_LOSSES
    rules["tuner.minimizer.seconds"] = rules["tuner.minimizer.seconds"].or_null()
    return rules


def group_learner(
    options: Mapping[str, Any],
    oscar: Oscar,
    strength: Mapping[str, float | None],
    algorithm: Mapping[str, Any],
    compute: Compute,
    device: str = "cpu",
) -> GroupLearner:
    """Return what learns groups.

    options: ``learning``, one of `LEARNERS`, ``scaling``, ``merge_identical``, and what these take.
    strength: ``fraction`` and ``noise``, of which a fraction counts first; see `BatchLearning`.
    algorithm: the options of an optimizer of Algorithm 2: ``regularizer``, ``lr``, ``schedule``.

    Ranges are those of `option_rules`. Raises InputError: OSCAR has no strength.
    """
    learner: GroupLearner
    if options["learning"] == "batch":
        chosen = options["minimizer"]
        loss = minimizer_loss(chosen["loss"], chosen["mu"])
        seconds = float("inf") if chosen["seconds"] is None else chosen["seconds"]
        accuracy = Accuracy(chosen["residual"], chosen["gap"], seconds)
        with named_errors("tuner.minimizer"):
            check_device(device)
        fraction = strength["fraction"]
        noise = strength["noise"] if fraction is None else None
        with named_errors("regularizer"):
            learner = BatchLearning(oscar, loss, fraction, accuracy, device, chosen["path"], noise)
    elif options["learning"] == "random_pairs":
        learner = RandomPairs(oscar)
    elif options["learning"] == "clusters":
        learner = ClusteredWeights(oscar, **options["clusters"], passes=options["passes"])
    else:
        steps = algorithm["regularizer"], algorithm["lr"], algorithm["schedule"], options["passes"]
        learner = GroupLearning(*steps)
        if options["learning"] == "mix":
            learner = MixedLearning(*steps, options["shards"], compute)
    scaling, merge = options["scaling"], options["merge_identical"]
    if scaling == "none" and not merge:
        return learner
    return PreparedLearning(learner.regularizer, learner, scaling, merge)
