"""What two corpora have taught of rival features (Green et al. 2013, section 5.2).

Rivals are sparse features of one template with the same left part, such as rules that translate
one source side: ``rule_id:programm~program`` and ``rule_id:programm~programme``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Weights = Mapping[str, float]


class Disagreement(NamedTuple):
    """Rivals of which two systems prefer different ones.

    Attributes
    ----------
    left : str
        What the rivals have in common, with the template.
    first, second : str
        The names of the favourites of either system.
    lead : float
        The smaller one of the leads that either system gives its own favourite over the other's.
    """

    left: str
    first: str
    second: str
    lead: float


def left_part(name: str) -> str | None:
    """Return what a feature has in common with its rivals; None for one that has none.

    That is all before the ``~``, if there is something behind the template.
    """
    left, found, _ = name.partition("~")
    return left if found and not left.endswith((":", "_")) else None


def disagreements(first: Weights, second: Weights) -> list[Disagreement]:
    """Return the rivals that have no favourite in common, the surest first.

    Favourites have the largest weight of those rivals that have one in either system; a feature
    without a weight has 0. Of several the first by name stands for all.
    """
    rivals: dict[str, list[str]] = {}
    for name in sorted(first.keys() | second.keys()):
        left = left_part(name)
        if left is not None:
            rivals.setdefault(left, []).append(name)
    found = []
    for left, names in rivals.items():
        liked = _favourites(names, first), _favourites(names, second)
        if set(liked[0]) & set(liked[1]):
            continue
        ours, theirs = liked[0][0], liked[1][0]
        lead = min(
            first.get(ours, 0.0) - first.get(theirs, 0.0),
            second.get(theirs, 0.0) - second.get(ours, 0.0),
        )
        found.append(Disagreement(left, ours, theirs, lead))
    return sorted(found, key=lambda one: (-one.lead, one.left))


def _favourites(names: Sequence[str], weights: Weights) -> list[str]:
    """Return the features with the largest weight, in their order."""
    largest = max(weights.get(name, 0.0) for name in names)
    return [name for name in names if weights.get(name, 0.0) == largest]
