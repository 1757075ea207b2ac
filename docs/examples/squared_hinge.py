"""A loss of pairs: the squared hinge."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SquaredHinge:
    """max(0, width - z)² of the margin z of a pair; autograd finds the gradient."""

    reduction: str = "sum"
    width: float = 1.0

    def __call__(self, margins):
        """Return the loss of each pair."""
        return (self.width - margins).clamp_min(0) ** 2
