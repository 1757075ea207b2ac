"""Losses on the scores and gains of whole k-best lists, one small class each.

Where hypotheses tie, the first of the list is chosen, so that one input has one gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.core.accepts import above, accepting, least, one_of
from torchtune_smt.losses.base import Reduced, Reduction


class _OfLists(Reduced):
    listwise: ClassVar[Literal[True]] = True


@dataclass(frozen=True)
class Softmax(_OfLists):
    """-log of the probability, in softmax(scores), of the best hypotheses.

    The best are those of the largest gain; where several have it, their probabilities are added
    (Watanabe 2012, Eq. 3, with the oracles of the list).
    """

    reduction: Reduction = "sum"

    def __call__(self, scores: Tensor, gains: Tensor) -> Tensor:
        """Return the loss of each list."""
        best = gains == gains.amax(-1, keepdim=True)
        of_best = scores.masked_fill(~best, -float("inf")).logsumexp(-1)
        return scores.logsumexp(-1) - of_best


@dataclass(frozen=True)
class ExpectedGain(_OfLists):
    """-E[gain] - entropy · H(p), with p = softmax(scores / temperature): minimum risk.

    Smith and Eisner (2006): a temperature towards 0 approaches the gain of the best-scoring
    hypothesis, and the entropy term keeps p from settling too early.
    """

    accepts = accepting(temperature=above(0), entropy=least(0))

    temperature: float = 1.0
    entropy: float = 0.0
    reduction: Reduction = "sum"

    def __call__(self, scores: Tensor, gains: Tensor) -> Tensor:
        """Return the loss of each list."""
        logs = (scores / self.temperature).log_softmax(-1)
        p = logs.exp()
        # Differences to the largest gain: equal gains have a gradient of exactly 0.
        largest = gains.amax(-1, keepdim=True)
        loss = (p * (largest - gains)).sum(-1) - largest.squeeze(-1)
        if self.entropy:
            loss = loss + self.entropy * (p * logs).sum(-1)
        return loss


@dataclass(frozen=True)
class Ramp(_OfLists):
    """Structured ramp loss: the score of a worse hypothesis minus that of a better one.

    Gimpel and Smith (2012), Eqs. 6-8, with the cost of a hypothesis c = `cost` · (largest gain of
    the list - its gain):

    1. max(s + c) - max(s): the fear against the model's best;
    2. max(s) - max(s - c): the model's best against the hope;
    3. max(s + c) - max(s - c): the fear against the hope.

    cost: in units of the score by unit of gain.
    """

    accepts = accepting(variant=one_of(1, 2, 3), cost=above(0))

    variant: int = 3
    cost: float = 1.0
    reduction: Reduction = "sum"

    def __call__(self, scores: Tensor, gains: Tensor) -> Tensor:
        """Return the loss of each list."""
        cost = self.cost * (gains.amax(-1, keepdim=True) - gains)
        worse = scores + cost if self.variant != 2 else scores
        better = scores - cost if self.variant != 1 else scores
        return _maximum(worse) - _maximum(better)


@dataclass(frozen=True)
class HopeFear(_OfLists):
    """Hinge between hope and fear: max(0, `cost` · (gain of hope - gain of fear) - their margin).

    The hope is the hypothesis that maximises score + `cost` · gain, the fear that of score -
    `cost` · gain; the margin is the hope's score minus the fear's. This is MIRA's loss (Chiang
    2012; Cherry and Foster 2012), here with the step of any optimizer; like MIRA, it takes a
    step after each sentence.

    cost: in units of the score by unit of gain.
    """

    accepts = accepting(cost=above(0))

    cost: float = 1.0
    reduction: Reduction = "each"

    def __call__(self, scores: Tensor, gains: Tensor) -> Tensor:
        """Return the loss of each list."""
        gains = self.cost * gains
        hope = (scores + gains).argmax(-1, keepdim=True)
        fear = (scores - gains).argmax(-1, keepdim=True)
        margin = scores.gather(-1, hope) - scores.gather(-1, fear)
        gap = gains.gather(-1, hope) - gains.gather(-1, fear)
        return F.relu(gap - margin).squeeze(-1)


def _maximum(values: Tensor) -> Tensor:
    """Return the largest of each row; its gradient goes to the first of equal ones alone."""
    return values.gather(-1, values.argmax(-1, keepdim=True)).squeeze(-1)
