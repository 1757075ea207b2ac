"""What learns from pairs which features may share a weight, and what such groups are worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np

from torchtune_smt.core.accepts import Checked
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import Certificate, Minimizer, SmoothedHinge
from torchtune_smt.regularizers.oscar import Oscar
from torchtune_smt.tuners.base import Show, silent
from torchtune_smt.tuners.gradient import check_pairs

# Below this overlap of two seeds it is said that groups depend on chance.
SAME = 0.5


@dataclass(frozen=True)
class Chance:
    """What is random where groups are learnt, and what is to be said of it.

    otherwise: where it falls otherwise: "in another order of the pairs".
    cause: what groups then depend on: "the order of the pairs".
    advice: what helps; `sharing`, where just which features share a group depends on it.
    pairs: it is the pairs: to see what depends on it takes other ones.
    """

    otherwise: str
    cause: str
    advice: str
    sharing: str | None = None
    pairs: bool = False


ORDER: Final = Chance(
    "in another order of the pairs",
    "the order of the pairs more than on the pairs",
    "tuner.learning=batch finds groups that do not",
)
DRAW: Final = Chance(
    "with another draw from the pairs",
    "the draw from the pairs",
    "tuner.learning=batch learns groups from all of them",
)
SAMPLE: Final = Chance(
    "with other pairs of the same lists",
    "which pairs were drawn from the lists",
    "with more pairs of each list (sampler.pairs), or more sentences, it does less",
    "tuner.control=single does without sharing",
    pairs=True,
)
# Of samplers that take no seed, or lists in which there is nothing to choose.
SAME_SAMPLE: Final = replace(SAMPLE, otherwise="with another seed, which draws the same pairs,")


class Overlap(NamedTuple):
    """What two sets of groups have in common, each from 0 to 1 (Jaccard's index).

    Of the features that are in a group; and of the pairs of features that are in one group, 1 where
    neither has any, with the number of these, in the one or in the other.
    """

    features: float
    together: float
    pairs: int


def overlap(blocks: Int64, others: Int64) -> Overlap:
    """Return what two sets of groups, as `LearntGroups.blocks` has them, have in common."""
    both = (blocks >= 0) & (others >= 0)
    either = int(np.count_nonzero((blocks >= 0) | (others >= 0)))
    features = int(np.count_nonzero(both)) / either if either else 1.0
    cells = np.stack([blocks[both], others[both]])
    shared = _together(np.unique(cells, axis=1, return_counts=True)[1])
    alone = [_together(np.unique(b[b >= 0], return_counts=True)[1]) for b in (blocks, others)]
    pairs = sum(alone) - shared
    return Overlap(features, shared / pairs if pairs else 1.0, pairs)


def _together(sizes: Int64) -> int:
    """Return how many pairs of members sets of these sizes have."""
    return int((sizes * (sizes - 1) // 2).sum())


@dataclass(frozen=True)
class Problem:
    """Pairs that groups are learnt from, of no feature beyond D; weights (float64 [D]) so far."""

    pairs: Rows
    start: Float64
    n_dense: int
    seed: Sequence[int] = ()
    show: Show = silent

    def draw(self, stream: int) -> np.random.Generator:
        """Return random numbers of a stream; 1, 4 and 6 to 8 are of `GroupingTuner`."""
        return np.random.default_rng((*self.seed, stream))

    def dimension(self, oscar: Oscar) -> int:
        """Return OSCAR's d: as given, or the number of sparse features; there must be pairs."""
        check_pairs(len(self.pairs))
        return oscar.dimension or max(self.start.size - self.n_dense, 1)


def lifetime(oscar: Oscar, dimension: int) -> int:
    """Return after how many steps a weight is 0 again that one pair has made: 1 / (λ1 + λ2 d).

    A step of size η that a pair fires in adds η, and each step takes η (λ1 + λ2 d) at most. 2^62
    stands for never.
    """
    pull = oscar.lambda1 + oscar.lambda2 * dimension
    return int(min(np.ceil(1.0 / pull), 2.0**62)) if pull > 0.0 else 2**62


def fired_last(pairs: Rows, rows: Int64, blocks: Int64) -> float:
    """Return the share of features in groups that fire in some pairs (rows); 0 without any."""
    inside = blocks >= 0
    if not inside.any():
        return 0.0
    fired = np.zeros(blocks.size, np.bool_)
    fired[pairs.chosen(np.unique(rows)).feature] = True
    return float(np.count_nonzero(fired & inside) / np.count_nonzero(inside))


def certificate_of(problem: Problem, weights: Float64, oscar: Oscar) -> Certificate | None:
    """Return how far weights are from the minimum of the hinge; None where OSCAR is 0.

    It is with λ1 = λ2 = 0, and with λ1 = 0 where d is 1: λ2 is about two features.
    """
    dimension = problem.dimension(oscar)
    if oscar.lambda1 + oscar.lambda2 * (dimension - 1) == 0.0:
        return None
    minimizer = Minimizer(problem.pairs, problem.n_dense, SmoothedHinge(), weights.size)
    penalty = minimizer.penalty(oscar.lambda1, oscar.lambda2, dimension)
    return minimizer.certificate(penalty, weights)


def judged(
    problem: Problem, oscar: Oscar, weights: Float64, blocks: Int64, last: Int64 | None = None
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return what is to be said of weights and groups of steps, and the numbers for the log.

    last: pairs that weights were changed by in the last steps, as many as `lifetime` has, where
        OSCAR follows on each step.
    """
    remarks: list[str] = []
    numbers: dict[str, float] = {}
    certificate = None
    try:
        certificate = certificate_of(problem, weights, oscar)
    except (InputError, MemoryError) as error:
        # Groups do not need it.
        remarks.append(f"how far these weights are from the minimum is not known: {why_not(error)}")
    if certificate is not None:
        numbers |= {
            "diagnosis/objective": certificate.objective,
            "diagnosis/bound": certificate.bound,
            "diagnosis/residual": certificate.residual.largest,
        }
        remarks.append(f"of these weights: {certificate}")
    if last is not None and (blocks[problem.n_dense :] >= 0).any():
        pairs = problem.pairs
        share = fired_last(pairs, last, blocks)
        numbers["diagnosis/fired_last"] = share
        recent = min(lifetime(oscar, problem.dimension(oscar)), len(pairs))
        remarks.append(f"{share:.0%} of the features in groups fire in the last {recent:,} steps")
    return tuple(remarks), numbers


def why_not(error: Exception) -> str:
    """Return why something was not done that groups do not need."""
    return "there is no memory for it" if isinstance(error, MemoryError) else str(error)


def compared(
    blocks: Int64, others: Int64, chance: Chance
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return what is to be said of groups of sparse features that chance gives, and numbers."""
    if (blocks < 0).all() and (others < 0).all():
        return (), {}
    common = overlap(blocks, others)
    numbers = {
        "diagnosis/overlap_features": common.features,
        "diagnosis/overlap_together": common.together,
    }
    said = f"{chance.otherwise} {common.features:.0%} of the features in groups are the same"
    if common.pairs:
        said += f", and {common.together:.0%} of the pairs of features in one group"
    features, together = common.features < SAME, common.together < SAME
    if not features and not together:
        return (said,), numbers
    subject = "which features have a group" if features else "which features share a group"
    too = ", and so does which of them share one" if features and together else ""
    advice = chance.advice if features else chance.sharing or chance.advice
    return (said, f"warning: {subject} depends on {chance.cause}{too}; {advice}"), numbers


TOO_STRONG: Final = (
    "OSCAR has left no weight that is not 0; smaller regularizer.lambda1 and lambda2 leave more"
)


@dataclass(frozen=True)
class LearntGroups:
    """Groups, and what is to be said of them.

    blocks (int64 [D]): the same number for features that may share a weight, -1 for those in no
        group; what it has for dense features is not looked at. See `Oscar.groups`.
    dimension: OSCAR's d.
    text: how they were found, in some words; remarks: what the user ought to know, in sentences.
    numbers: what the log is to have.
    boundary: ids of features whose group, or whether they have one, is not known for certain.
    factor (float64 [D]): what the value of a feature counts for in its group; see `FeatureGroups`.
    why_none: where there are no groups: why, and which options find some.
    """

    blocks: Int64
    dimension: int
    text: str
    remarks: tuple[str, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)
    boundary: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    factor: Float64 | None = None
    why_none: str = TOO_STRONG


@dataclass(frozen=True)
class GroupLearner(Checked, ABC):
    """Learns groups of features from pairs.

    regularizer: its `dimension`, where it is given, is d.

    As attributes:
    prepares: whether it learns from features that may be scaled or merged (see `PreparedLearning`).
    needs: by groups of a configuration, the class that it cannot do without, and its choice.
    takes_not: groups and options of a configuration that it makes no use of, with the reasons.
    chance: what is random, and varied to see which groups depend on it.
    """

    prepares: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, tuple[str, type]]] = {"regularizer": ("oscar", Oscar)}
    takes_not: ClassVar[Mapping[str, str]] = {}
    chance: ClassVar[Chance] = ORDER

    regularizer: Oscar

    @classmethod
    def unused(
        cls, chosen: str, tuner: Mapping[str, Any], regularizer: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return `takes_not`, and options of two groups that others cancel, each with the reason.

        chosen: how a message names the tuner, and how it learns groups.
        """
        return {name: f"{chosen} {reason}" for name, reason in cls.takes_not.items()}

    def calibrated(self, noise: Callable[[int], Rows], problem: Problem) -> Self:
        """Return what learns with the strength that follows from `noise`; see `noise_scale`."""
        return self

    def learn(self, problem: Problem, draw: Callable[[], Rows] | None = None) -> LearntGroups:
        """Return groups of the features of some pairs, and how much of them is chance's.

        Without `draw`, which draws other pairs of the same features, groups in which nothing else
        is random are not compared with any.
        """
        found = self.find(problem)
        chance = self.chance
        drawn = draw if chance.pairs else lambda: problem.pairs
        if drawn is None:
            return found
        try:
            others = drawn()
            if chance.pairs and _equal(problem.pairs, others):
                chance, blocks = SAME_SAMPLE, found.blocks
            else:
                blocks = self.again(replace(problem, pairs=others))
        except (InputError, DivergenceError, MemoryError) as error:
            # This is only there to be compared with, and the groups that count are learnt.
            said = f"{chance.otherwise} nothing can be learnt: {why_not(error)}"
            return replace(found, remarks=(*found.remarks, said))
        first = problem.n_dense
        remarks, numbers = compared(found.blocks[first:], blocks[first:], chance)
        return replace(found, remarks=(*found.remarks, *remarks), numbers=found.numbers | numbers)

    def again(self, problem: Problem) -> Int64:
        """Return groups as `find` has them, by other random numbers: int64 [D]."""

        def shown(what: str, done: int, total: int, unit: str) -> None:
            problem.show(f"{what} again", done, total, unit)

        # 3 names the stream where 2 is that of `find`.
        return self.find(replace(problem, seed=(*problem.seed, 3), show=shown)).blocks

    @abstractmethod
    def find(self, problem: Problem) -> LearntGroups:
        """Return groups of the features of some pairs.

        Raises InputError: there are no pairs; d is smaller than the number of sparse features that
        may get a weight. DivergenceError: a margin is not finite.
        """


def _equal(*pairs: Rows) -> bool:
    return all(map(np.array_equal, *((x.begin, x.feature, x.value) for x in pairs)))
