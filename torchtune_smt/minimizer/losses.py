"""Losses of margins that have a gradient everywhere, for the minimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torchtune_smt.core.accepts import Checked, above, accepting
from torchtune_smt.core.arrays import Float64
from torchtune_smt.minimizer import loss_kernels as kernels


@dataclass(frozen=True)
class MarginLoss:
    """A convex loss ℓ(z) that falls with the margin z.

    kind: its number in `loss_kernels`.
    highest: the domain of the dual: ℓ*(-a) is finite for a from 0 to this.
    has_tail: whether the loss that is meant falls for ever, so that it has no minimum where weights
        that are not regularised tell pairs apart without error. The hinge does not, though its
        smoothed form does.
    """

    kind: ClassVar[int]
    highest: ClassVar[float]
    has_tail: ClassVar[bool]

    @property
    def width(self) -> float:
        """The μ of a smoothed loss, which may lie μ/2 below what it smoothes; 0 of others."""
        return 0.0

    def mean(self, margins: Float64) -> float:
        """Return the mean of ℓ."""
        return float(kernels.values(self.kind, self.width, margins))

    def pulls(self, margins: Float64) -> Float64:
        """Return -dℓ/dz of each margin: 0 or more."""
        return kernels.pulls(self.kind, self.width, margins)

    def curvatures(self, margins: Float64) -> Float64:
        """Return d²ℓ/dz² of each margin."""
        return kernels.curvatures(self.kind, self.width, margins)

    def primal_dual_curvatures(self, margins: Float64, dual: Float64) -> Float64:
        """Return curvatures for a step of Newton that moves a dual point along with the weights.

        Those of most losses are d²ℓ/dz², whatever the dual point is.

        dual (float64 [N]): pulls; those that belong to the margins give `curvatures`.
        """
        return self.curvatures(margins)

    def mean_conjugate(self, dual: Float64) -> float:
        """Return the mean of ℓ*(-a) of a dual point, whose values are in the domain."""
        return float(kernels.conjugates(self.kind, self.width, dual))

    def along(self, margins: Float64, direction: Float64, step: float) -> tuple[float, float]:
        """Return the mean of ℓ at ``margins + step · direction``, and its derivative by step."""
        return kernels.along(self.kind, self.width, margins, direction, step)

    def stages(self) -> list[MarginLoss]:
        """Return smoother losses to minimise before this one, the smoothest first."""
        return []


@dataclass(frozen=True)
class SmoothedHinge(Checked, MarginLoss):
    """h_μ(z) = ½ (1 - z + √((1 - z)² + μ²)) - μ/2, so that h_μ ≤ h ≤ h_μ + μ/2.

    h(z) = max(0, 1 - z) is the hinge of Liu et al. (2013), Eq. 1. This way of making it smooth is
    that of Chen and Harker (1993) and of Kanzow (1996). Its curvature is nowhere 0, which
    Newton's method needs: where the smoothing ends at some distance from z = 1, as that of a
    Huber function does, it is blind for pairs that are about to change sides.

    """

    accepts = accepting(mu=above(0))

    mu: float = 5e-4

    kind: ClassVar[int] = kernels.SMOOTHED_HINGE
    highest: ClassVar[float] = 1.0
    has_tail: ClassVar[bool] = False

    @property
    def width(self) -> float:
        """See `MarginLoss`."""
        return self.mu

    def primal_dual_curvatures(self, margins: Float64, dual: Float64) -> Float64:
        """See `MarginLoss`: those of Chan, Golub and Mulet (1999), who smooth |s| like this.

        With s = 1 - z and r = √(s² + μ²), the pull a is ½ (1 + s / r), which bends sharply where
        (2a - 1) r = s does not. Linearised, the latter gives ½ (1 - (2a - 1) s / r) / r in the
        place of ½ (1 - s² / r²) / r, so that pairs about to change sides have a curvature, too.
        """
        return kernels.primal_dual_curvatures(self.mu, margins, dual)

    def stages(self) -> list[MarginLoss]:
        """See `MarginLoss`; μ shrinks from 1 on."""
        widths = [self.mu]
        while widths[-1] * 3.0 <= 1.0:
            widths.append(widths[-1] * 3.0)
        return [SmoothedHinge(mu) for mu in widths[:0:-1]]


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """½ max(0, 1 - z)²."""

    kind: ClassVar[int] = kernels.SQUARED_HINGE
    highest: ClassVar[float] = float("inf")
    has_tail: ClassVar[bool] = False


@dataclass(frozen=True)
class Logistic(MarginLoss):
    """log(1 + e⁻ᶻ)."""

    kind: ClassVar[int] = kernels.LOGISTIC
    highest: ClassVar[float] = 1.0
    has_tail: ClassVar[bool] = True
