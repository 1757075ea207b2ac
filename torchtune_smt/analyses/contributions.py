"""Which features make two systems prefer different translations of a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import NamedTuple

Values = Mapping[str, float]


class Contribution(NamedTuple):
    """What a feature adds to the lead of the first system's translation over the second's.

    Attributes
    ----------
    name : str
    difference : float
        The feature's value in the first system's derivation, minus that in the second's.
    first, second : float
        What it adds in the model of either system: the difference times the weight there.
    """

    name: str
    difference: float
    first: float
    second: float


def contributions(
    rows: tuple[Values, Values], weights: tuple[Values, Values]
) -> list[Contribution]:
    """Return what features add to the leads, those first in which the systems differ the most.

    The sum of `Contribution.first` is what the first system's model gives its own translation more
    than the other: below 0 only where its search has missed the better one. That of
    `Contribution.second` is its lead in the other model: above 0 only in the same case.

    As weights may be larger in one system throughout, what a feature adds is divided by what all
    of them add in this system (in absolute value) before the two are compared.

    Parameters
    ----------
    rows : (mapping, mapping)
        The features of the two derivations, all that either system has a weight for.
    weights : (mapping, mapping)
        Of the two systems.
    """
    ours, theirs = rows
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name, 0.0), theirs.get(name, 0.0)
        # The same numbers may have been added in another order.
        if isclose(mine, other, rel_tol=1e-9):
            continue
        difference = mine - other
        # 0.0 + -0.0 is 0.0.
        first, second = (0.0 + difference * side.get(name, 0.0) for side in weights)
        if first or second:
            found.append(Contribution(name, difference, first, second))
    ours_in_all = sum(abs(one.first) for one in found) or 1.0
    theirs_in_all = sum(abs(one.second) for one in found) or 1.0
    return sorted(
        found,
        key=lambda one: (-abs(one.first / ours_in_all - one.second / theirs_in_all), one.name),
    )
