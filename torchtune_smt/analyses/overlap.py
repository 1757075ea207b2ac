"""Which features two sets have in common (Green et al. 2013, section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.features.templates import templates_of

DENSE: Final = "dense"
ALL: Final = "all"

# Moses gives the values of a label numbers.
_NUMBERED: Final = re.compile(r"[^~]+_\d+")


class FeatureSet(NamedTuple):
    """Features that are in use.

    Attributes
    ----------
    name : str
    values : mapping of str to float
        None of them 0: weights, or in how many translations a feature fires.
    dense : collection of str
        Those of them, or more, that are dense.
    are_weights : bool
    """

    name: str
    values: Mapping[str, float]
    dense: Collection[str]
    are_weights: bool = False


class Overlap(NamedTuple):
    """The features of a template.

    Attributes
    ----------
    template : str
        `DENSE` for dense features, `ALL` for all.
    first, second, both : int
        |A|, |B| and |A ∩ B|.
    same_sign : int, optional
        Of those in both, how many have weights of one sign; None: they are no weights.
    correlation : float, optional
        Pearson's, of the weights of those in both; None where it is not defined.
    """

    template: str
    first: int
    second: int
    both: int
    same_sign: int | None = None
    correlation: float | None = None


def dense_features(names: Iterable[str], *, moses: bool) -> frozenset[str]:
    """Return the dense ones of some features: those without a colon.

    Parameters
    ----------
    moses : bool
        Names may be Moses's, where sparse features have none, either: dense are then a label with
        the number of its value, ``LM0_0``, and names without an underscore.
    """
    return frozenset(
        name
        for name in names
        if ":" not in name and (not moses or "_" not in name or _NUMBERED.fullmatch(name))
    )


def dense_by_names(names: Collection[str]) -> frozenset[str]:
    """Return the dense ones of all features of a file that does not say whose they are.

    Moses's sparse features give it away: in ``WT_haus~house`` there is no colon before the words.
    Then other names with an underscore are sparse, too, as `dense_features` tells Moses's, but for
    those that begin with a dense one, as ``LanguageModel_OOV`` with ``LanguageModel``.
    """
    labels = {name: name.partition("_")[0] for name in names if "_" in name and ":" not in name}
    templates = {label for name, label in labels.items() if "~" in name}
    if not templates:
        return dense_features(names, moses=False)
    dense = dense_features(names, moses=True)
    more = {name for name, label in labels.items() if label in dense}
    return frozenset(name for name in dense | more if labels.get(name) not in templates)


def by_template(names: Collection[str], dense: Collection[str]) -> dict[str, list[str]]:
    """Return features by their template, the dense ones first, then by name."""
    sparse = [name for name in names if name not in dense]
    found: dict[str, list[str]] = {}
    for name, template in sorted(zip(sparse, templates_of(sparse), strict=True)):
        found.setdefault(template, []).append(name)
    own = {DENSE: sorted(name for name in names if name in dense)}
    return {t: members for t, members in (own | dict(sorted(found.items()))).items() if members}


def overlap(first: FeatureSet, second: FeatureSet) -> list[Overlap]:
    """Return how far two sets have the same features: for each template, and for all in the end."""
    names = first.values.keys() | second.values.keys()
    groups = by_template(names, {*first.dense, *second.dense})
    found = [_of(template, members, first, second) for template, members in groups.items()]
    return [*found, _of(ALL, names, first, second)]


def _of(template: str, members: Collection[str], first: FeatureSet, second: FeatureSet) -> Overlap:
    a, b = first.values, second.values
    both = [name for name in members if name in a and name in b]
    mine, yours = (sum(name in values for name in members) for values in (a, b))
    if not (first.are_weights and second.are_weights):
        return Overlap(template, mine, yours, len(both))
    pairs = np.array([(a[name], b[name]) for name in sorted(both)]).reshape(-1, 2)
    # The product of tiny weights may be 0.
    same = int((np.sign(pairs[:, 0]) == np.sign(pairs[:, 1])).sum())
    # Two points always lie on a line.
    # A standard deviation of equal weights, such as those of a group, may be more than 0.
    varies = len(both) > 2 and (pairs != pairs[0]).any(axis=0).all()
    correlation = float(np.corrcoef(pairs.T)[0, 1]) if varies else None
    return Overlap(template, mine, yours, len(both), same, correlation)
