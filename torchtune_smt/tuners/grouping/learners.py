"""What learns groups, by the names of the ways to do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torchtune_smt.core.accepts import Rule, rules_of
from torchtune_smt.core.checks import check_device
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.minimizer import Accuracy, SmoothedHinge
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.batch import BatchTuner
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.controls import ClusteredWeights, RandomPairs
from torchtune_smt.tuners.grouping.minimum import MINIMIZER_LOSSES, BatchLearning, minimizer_loss
from torchtune_smt.tuners.grouping.prepared import PreparedLearning
from torchtune_smt.tuners.grouping.steps import Compute, GroupLearning, MixedLearning

LEARNERS: Final[dict[str, type[GroupLearner]]] = {
    "online": GroupLearning,
    "mix": MixedLearning,
    "batch": BatchLearning,
    "random_pairs": RandomPairs,
    "clusters": ClusteredWeights,
}


def option_rules(tuner: type) -> dict[str, Rule]:
    """Return what the options of a tuner may be that its class, or what learns groups, takes.

    They are called as in a configuration: ``tuner.minimizer.mu``.
    """
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
    compute: takes the steps of shards; see `torchtune_smt.tuners.grouping.steps`.
    device ("cpu", "cuda")

    Raises InputError: an option is out of range.
    """
    learner: GroupLearner
    if options["learning"] == "batch":
        chosen = options["minimizer"]
        with named_errors("tuner.minimizer"):
            loss = minimizer_loss(chosen["loss"], chosen["mu"])
            seconds = float("inf") if chosen["seconds"] is None else chosen["seconds"]
            accuracy = Accuracy(chosen["residual"], chosen["gap"], seconds)
            check_device(device)
        fraction = strength["fraction"]
        noise = strength["noise"] if fraction is None else None
        with named_errors("regularizer"):
            learner = BatchLearning(oscar, loss, fraction, accuracy, device, chosen["path"], noise)
    elif options["learning"] == "random_pairs":
        learner = RandomPairs(oscar)
    elif options["learning"] == "clusters":
        with named_errors("tuner.clusters"):
            learner = ClusteredWeights(oscar, **options["clusters"], passes=options["passes"])
    else:
        steps = algorithm["regularizer"], algorithm["lr"], algorithm["schedule"], options["passes"]
        with named_errors("tuner"):
            learner = GroupLearning(*steps)
            if options["learning"] == "mix":
                learner = MixedLearning(*steps, options["shards"], compute)
    scaling, merge = options["scaling"], options["merge_identical"]
    if scaling == "none" and not merge:
        return learner
    return PreparedLearning(learner.regularizer, learner, scaling, merge)
