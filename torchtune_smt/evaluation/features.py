"""What sparse features do in two systems: analyses of Green et al. (2013)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isclose
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.features.templates import escape, templates_of

Weights = Mapping[str, float]
"""Weights, or values, of features by their names."""

DENSE: Final = "dense"
ALL: Final = "all"
# Moses gives the values of a label numbers.
_NUMBERED: Final = re.compile(r"[^~]+_\d+")


class FeatureSet(NamedTuple):
    """Features in use: weights, or in how many translations each fires, none of them 0.

    dense: those of them, or more, that are dense.
    """

    name: str
    values: Weights
    dense: Collection[str]
    are_weights: bool = False


def dense_features(names: Iterable[str], *, moses: bool) -> frozenset[str]:
    """Return the dense ones of some features: those without a colon.

    Names may be Moses's, where sparse features have none, either: dense are then a label with the
    number of its value, ``LM0_0``, and names without an underscore.
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


class Overlap(NamedTuple):
    """The features of a template that two sets have (section 5.1).

    template: `DENSE` for dense features, `ALL` for all.
    first, second, both: |A|, |B| and |A ∩ B|.
    same_sign: of those in both, how many have weights of one sign; None: they are no weights.
    correlation: Pearson's, of the weights of those in both; None where it is not defined.
    """

    template: str
    first: int
    second: int
    both: int
    same_sign: int | None = None
    correlation: float | None = None


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


class Disagreement(NamedTuple):
    """Rivals, by their left part, of which two systems prefer different ones.

    lead: the smaller one of the leads that either system gives its own favourite over the other's.
    """

    left: str
    first: str
    second: str
    lead: float


def left_part(name: str) -> str | None:
    """Return what a feature has in common with its rivals, before the ``~``; None: it has none."""
    left, found, _ = name.partition("~")
    return left if found and not left.endswith((":", "_")) else None


def disagreements(first: Weights, second: Weights) -> list[Disagreement]:
    """Return the rivals that have no favourite in common, the surest first (section 5.2).

    Rivals are sparse features of one template with the same left part, such as rules that translate
    one source side: ``rule_id:programm~program`` and ``rule_id:programm~programme``. Favourites
    have the largest weight of those rivals that have one in either system; a feature without a
    weight has 0. Of several the first by name stands for all.
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
    largest = max(weights.get(name, 0.0) for name in names)
    return [name for name in names if weights.get(name, 0.0) == largest]


class Spelling(NamedTuple):
    """How often a word is in the references tuned on, and in features that translate by it."""

    word: str
    tokens: int
    features: int


def spellings(
    words: Sequence[str], references: Iterable[Sequence[Sequence[str]]], names: Iterable[str]
) -> list[Spelling]:
    """Count words in the references of sentences, and in the names of features (Table 7).

    A feature translates by what stands behind the ``~`` of its name, words with ``_`` between them.
    """
    tokens = Counter(word for sentence in references for one in sentence for word in one)
    features: Counter[str] = Counter()
    for name in names:
        features.update(set(name.partition("~")[2].split("_")))
    return [Spelling(word, tokens[word], features[escape(word)]) for word in words]


class Contribution(NamedTuple):
    """What a feature adds in two systems.

    values: its value in the first system's derivation, minus that in the second's; of systems that
        are not comparable, its value in the derivation of either.
    first, second: what it adds in the model of either system: the value times the weight there.
    """

    name: str
    values: tuple[float, ...]
    first: float
    second: float


def contributions(
    rows: Sequence[Weights], weights: Sequence[Weights], *, comparable: bool = True
) -> list[Contribution]:
    """Return what features add, those first in which the systems differ the most.

    It is added to the lead of the first system's translation over the second's. The sum of
    `Contribution.first` is what the first system's model gives its own translation more than the
    other: below 0 only where its search has missed the better one. That of `Contribution.second`
    is its lead in the other model: above 0 only in the same case.

    Systems of different models, such as one with rules and one with phrases, are not comparable:
    neither can score what the other has chosen, and a feature adds to the score that either gives
    its own translation. Features are the same where their names are.

    As weights may be larger in one system throughout, what a feature adds is divided by what all
    of them add in this system (in absolute value) before the two are compared.

    rows: the features of the two derivations, all that either system has a weight for.
    weights: of the two systems.
    """
    found = []
    for name in sorted(rows[0].keys() | rows[1].keys()):
        values = tuple(row.get(name, 0.0) for row in rows)
        if comparable:
            # The same numbers may have been added in another order.
            same = isclose(*values, rel_tol=1e-9)
            values = (0.0 if same else values[0] - values[1],)
        of_either = zip((values[0], values[-1]), weights, strict=True)
        # 0.0 + -0.0 is 0.0.
        first, second = (0.0 + value * side.get(name, 0.0) for value, side in of_either)
        if first or second:
            found.append(Contribution(name, values, first, second))
    first_in_all = sum(abs(one.first) for one in found) or 1.0
    second_in_all = sum(abs(one.second) for one in found) or 1.0
    return sorted(
        found,
        key=lambda one: (-abs(one.first / first_in_all - one.second / second_in_all), one.name),
    )
