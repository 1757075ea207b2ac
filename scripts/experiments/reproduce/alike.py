"""What results differ in: results of one experiment have one mean, and others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import tables

# Options of memory, speed and what is kept; the seed, which tells results of one experiment apart;
# and the number of training sentences, which results have in a field of their own.
NOT_COUNTED: Final = frozenset(
    (
        *("resume", "overwrite", "threads", "callbacks", "report"),
        "decoder.keep_mb",
        "tuner.checkpoint_minutes",
        "tuner.keep_lists",
        "seed",
        "tuner.sentences",
    )
)
# All rows of a corpus have what stands before it; what stands behind it is the row's.
LAST_OF_ALL: Final = "data.test=null"

Settings = frozenset[tuple[str, str]]


class Key(NamedTuple):
    """A line of the table: what a folder of rows has one result of."""

    row: str
    training_sentences: int
    seed: int

    @classmethod
    def of(cls, result: tables.Result) -> Key:
        """Return the key of a result."""
        return cls(result.row, result.training_sentences, result.seed)


def settings(overrides: Sequence[str]) -> Settings:
    """Return the options that results depend on, and their values.

    Of an option that is given more than once the last value counts. Numbers are written in one way.
    """
    parts = (one.partition("=") for one in overrides)
    last = {key.lstrip("+~").partition("@")[0]: _value(value) for key, _, value in parts}
    counted = last.keys() - NOT_COUNTED
    return frozenset((key, last[key]) for key in counted if not key.startswith("engine."))


def shared(overrides: Sequence[str]) -> Settings:
    """Return the settings that all rows have that are done by one command."""
    given = list(overrides)
    if LAST_OF_ALL in given:
        del given[len(given) - 1 - given[::-1].index(LAST_OF_ALL) :]
    return settings(given)


def _value(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


def groups_of(results: Sequence[tables.Result], baseline: str) -> list[tables.Group]:
    """Return results by experiment: those of a group differ in nothing but the seed.

    Parameters
    ----------
    results : sequence of Result
        In the order of the table.
    baseline : str
        The row that others are compared with, where `shared` is the same.
    """
    by: dict[tuple[str, int, Settings], list[tables.Result]] = defaultdict(list)
    for result in results:
        by[result.row, result.training_sentences, settings(result.overrides)].append(result)
    groups = list(by.values())
    baselines: dict[Settings, list[tables.Result]] = {}
    # Of several with the same options the one that has most seeds.
    for group in sorted(groups, key=len, reverse=True):
        if group[0].row == baseline:
            baselines.setdefault(shared(group[0].overrides), group)
    labels = _labels(groups, next((g for g in groups if g[0].row == baseline), groups[0]))
    return [
        tables.Group(label, group, baselines.get(shared(group[0].overrides), []))
        for label, group in zip(labels, groups, strict=True)
    ]


def _labels(
    groups: Sequence[Sequence[tables.Result]], reference: Sequence[tables.Result]
) -> list[str]:
    """Return what groups have else than a reference, or than others of their row, in words."""
    alike: dict[tuple[str, int], list[Settings]] = defaultdict(list)
    for group in groups:
        first = group[0]
        alike[first.row, first.training_sentences].append(settings(first.overrides))
    usual, labels = shared(reference[0].overrides), []
    for group in groups:
        first = group[0]
        own = settings(first.overrides)
        of_row = frozenset.intersection(*alike[first.row, first.training_sentences])
        more = (own - of_row) | (shared(first.overrides) - usual)
        without = {key for key, _ in usual} - {key for key, _ in own}
        words = [f"`{key}={value}`" for key, value in sorted(more)]
        words += [f"without `{key}={value}`" for key, value in sorted(usual) if key in without]
        labels.append(", ".join(words))
    return labels


def labelled(group: tables.Group) -> list[tables.Result]:
    """Return the results of a group as tables and pictures name them: with the group's label."""
    if not group.label:
        return list(group.results)
    return [replace(one, method=f"{one.method}, {group.label}") for one in group.results]
