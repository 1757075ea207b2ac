"""Steps on some k-best lists alone, from weights that are only read: what strategies mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.optim import Optimizer

from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses.base import Loss
from torchtune_smt.optim.adapter import LazyOptimizer
from torchtune_smt.samplers import PairSampler
from torchtune_smt.tuners.learner import Learner


@dataclass(frozen=True)
class LocalResult:
    """What steps on some lists have found.

    Attributes
    ----------
    weights : FrozenWeights
        Of the features of these lists; all others are as they were.
    loss : float
        Mean over pairs or lists, each before its step.
    count : int
        Number of pairs or lists.
    """

    weights: FrozenWeights
    loss: float
    count: int


def local_pass(
    lists: KBestLists,
    snapshot: Snapshot,
    loss: Loss,
    sampler: PairSampler | None,
    optimizer: Callable[[list[Tensor]], LazyOptimizer | Optimizer],
    seed: Sequence[int] = (),
) -> LocalResult:
    """Return the weights after steps on k-best lists, from those of a snapshot on.

    With reduction "each" these are steps after each pair or list, in order. Nothing is changed, so
    a pass may be taken again, and in any thread or process.

    Parameters
    ----------
    lists : KBestLists
        With gains and names of features.
    snapshot, loss, sampler, seed
        As for `torchtune_smt.tuners.gradient.gradient`.
    optimizer : callable
        Returns a new optimizer of a list of parameters. Features keep their order, but not their
        ids.

    Raises
    ------
    ValueError
        The lists have no names of features, or no gains.
    """
    if lists.features is None:
        raise ValueError("these lists do not know the names of their features")
    feature, rows = lists.rows.numbered()
    weights = Weights()
    names = lists.features.names(feature)
    weights.set(names, snapshot.read(lists.features, feature))
    learner = Learner(weights, optimizer([weights.parameter]))
    own = replace(lists, rows=rows, features=weights.features)
    mean, count = learner.step(own, loss, sampler, seed)
    learner.optimizer.flush()
    values = weights.parameter.detach().numpy()
    return LocalResult(FrozenWeights(weights.features, values, snapshot.version), mean, count)
