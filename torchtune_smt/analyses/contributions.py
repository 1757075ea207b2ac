"""Which features make two systems prefer different translations of a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import NamedTuple, TypeVar

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


class Part(NamedTuple):
    """What a feature adds to the scores that two systems give their own translations.

    Attributes
    ----------
    name : str
    first_value, second_value : float
        Its value in the derivation of either system.
    first, second : float
        The value times the weight there.
    """

    name: str
    first_value: float
    second_value: float
    first: float
    second: float


Added = TypeVar("Added", Contribution, Part)


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
    return _by_difference(found)


def parts_of_scores(rows: tuple[Values, Values], weights: tuple[Values, Values]) -> list[Part]:
    """Return what features add to scores, those first in which the systems differ the most.

    For systems of different models, such as one with rules and one with phrases: neither can score
    what the other has chosen. Features are the same where their names are. What is added is
    compared as in `contributions`.

    Parameters
    ----------
    rows : (mapping, mapping)
        The features of either system's own derivation.
    weights : (mapping, mapping)
        Of the two systems.
    """
    found = []
    for name in sorted(rows[0].keys() | rows[1].keys()):
        first, second = (row.get(name, 0.0) for row in rows)
        # 0.0 + -0.0 is 0.0.
        adds = [
            0.0 + value * side.get(name, 0.0)
            for value, side in zip((first, second), weights, strict=True)
        ]
        if any(adds):
            found.append(Part(name, first, second, *adds))
    return _by_difference(found)


def _by_difference(found: list[Added]) -> list[Added]:
    """Return features by the difference of the shares that they have of all that is added."""
    first_in_all = sum(abs(one.first) for one in found) or 1.0
    second_in_all = sum(abs(one.second) for one in found) or 1.0
    return sorted(
        found,
        key=lambda one: (-abs(one.first / first_in_all - one.second / second_in_all), one.name),
    )
