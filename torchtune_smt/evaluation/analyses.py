"""What analyses show, as a table and a picture: of features, of texts, of runs.

Each takes names of systems, and what it is about; see `torchtune_smt.evaluation.features` and
`torchtune_smt.evaluation.translations` for how it is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from string import ascii_uppercase
from typing import Any, Final, NamedTuple

import numpy as np

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words
from torchtune_smt.decoders.base import Derivation
from torchtune_smt.evaluation import features, pictures
from torchtune_smt.evaluation.features import FeatureSet, Weights
from torchtune_smt.evaluation.tables import Cell, Table
from torchtune_smt.evaluation.translations import ORDERS, reference_order, segments
from torchtune_smt.runs.curves import Run
from torchtune_smt.runs.timeline import round_seconds

# Of a system's name, as the head of a column.
LONGEST: Final = 20


class Found(NamedTuple):
    """What an analysis has found.

    draw: draws it to a file in a form, ``png``, ``svg`` or ``pdf``, with a caption.
    """

    table: Table
    draw: Callable[..., None]


def labels(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return names for the columns of tables, and notes that tell what they stand for.

    Names of runs may be long: where one is, they are A, B and so on.
    """
    names = list(names)
    if max(map(len, names), default=0) <= LONGEST:
        return names, []
    letters = [ascii_uppercase[n % 26] + str(n // 26 or "") for n in range(len(names))]
    return letters, [f"{a}: {name}" for a, name in zip(letters, names, strict=True)]


def overlap(sets: Sequence[FeatureSet]) -> Found:
    """Count the features that each two sets have in common."""
    pairs = [(a.name, b.name, features.overlap(a, b)) for a, b in combinations(sets, 2)]
    head = ["A", "B", "template", "|A|", "|B|", "|A ∩ B|", "% of A", "% of B"]
    weighed = any(one.same_sign is not None for *_, found in pairs for one in found)
    head += ["same sign", "correlation"] if weighed else []
    rows: list[list[Cell]] = []
    for a, b, found in pairs:
        for one in found:
            shares = [100 * one.both / n if n else None for n in (one.first, one.second)]
            row = [a, b, one.template, one.first, one.second, one.both, *shares]
            rows.append([*row, *((one.same_sign, one.correlation) if weighed else ())])
    return Found(Table(head, rows, left=3), partial(pictures.draw_overlaps, pairs))


def adaptation(
    sets: tuple[FeatureSet, FeatureSet], *, rivals: bool, match: str | None = None
) -> Found:
    """Compare the weights of rival features, or of the same features, in two systems.

    match: a regular expression, which names of features have, here and below.
    """
    (a, b), pattern = (one.name for one in sets), compiled(match)
    first, second = (
        {name: weight for name, weight in one.values.items() if pattern.search(name)}
        for one in sets
    )
    if not first and not second:
        raise InputError(f"match={match} is in the name of no feature that has a weight")
    rows: list[list[Cell]] = []
    if rivals:
        found = features.disagreements(first, second)
        head = ["rivals", "of these", "preferred by", f"w {a}", f"w {b}", "lead"]
        for one in found:
            for system, name in ((a, one.first), (b, one.second)):
                part = name.removeprefix(f"{one.left}~") or "(nothing)"
                rows.append([one.left, part, system, first.get(name), second.get(name), one.lead])
        note = f"rivals of which {a} and {b} prefer different ones: {len(found):,}"
    else:
        head = ["feature", f"w {a}", f"w {b}", "difference"]
        names = sorted(first.keys() | second.keys())
        differences = {n: second.get(n, 0.0) - first.get(n, 0.0) for n in names}
        names.sort(key=lambda name: -abs(differences[name]))
        rows = [[n, first.get(n), second.get(n), differences[n]] for n in names]
        note = f"features with a weight in either: {len(rows):,}"
    dense = {*sets[0].dense, *sets[1].dense}
    draw = partial(pictures.draw_weights, (a, first), (b, second), dense)
    return Found(Table(head, rows, [note], left=3 if rivals else 1), draw)


def spellings(
    words: Sequence[str],
    systems: Sequence[tuple[FeatureSet, str, Sequence[Sequence[Sequence[str]]]]],
    match: str | None = None,
) -> Found:
    """Count words where systems were tuned, and the features that translate by them.

    systems: weights, the name of the set that they were tuned on, and the references of its
        sentences.
    """
    pattern = compiled(match)
    found, notes = {}, []
    for weights, tuned_on, references in systems:
        names = [n for n in weights.values if n not in weights.dense and pattern.search(n)]
        found[weights.name] = features.spellings(words, references, names)
        notes.append(
            f"{weights.name}: tuned on {tuned_on}, {len(references):,} sentences; sparse features "
            f"with a weight: {len(names):,}"
        )
    head = ["word", *(f"{what} of {s}" for what in ("references", "features") for s in found)]
    rows: list[list[Cell]] = [
        [
            word,
            *(one[n].tokens for one in found.values()),
            *(one[n].features for one in found.values()),
        ]
        for n, word in enumerate(words)
    ]
    return Found(Table(head, rows, notes), partial(pictures.draw_spellings, found))


def reordering(
    names: Sequence[str],
    translations: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    chosen: Iterable[int],
) -> Found:
    """Find the same words in another order in two systems, and whose order a reference has.

    `chosen` are numbers of sentences.
    """
    a, b = names
    said = {"first": a, "second": b, "both": "both", "neither": "neither"}
    rows: list[list[Cell]] = []
    sizes: dict[str, Counter[int]] = {order: Counter() for order in ORDERS}
    chosen, sentences = list(chosen), set()
    for i in chosen:
        known = [split_words(line) for line in references[i]]
        for segment in segments(*(split_words(lines[i]) for lines in translations)):
            order = reference_order(segment, known)
            rows.append([i + 1, " ".join(segment.first), " ".join(segment.second), said[order]])
            sizes[order][len(segment.first)] += 1
            sentences.add(i)
    notes = [f"sentences: {len(chosen):,}, with words in another order: {len(sentences):,}"]
    for order in ORDERS:
        count = sizes[order].total()
        share = f" ({count / len(rows):.1%})" if rows else ""
        notes.append(f"segments where a reference has the order of {said[order]}: {count:,}{share}")
    named = {said[order]: found for order, found in sizes.items()}
    table = Table(["sentence", a, b, "a reference has the order of"], rows, notes, left=4)
    return Found(table, partial(pictures.draw_orders, named))


def progress(runs: Mapping[str, Sequence[Run]]) -> Found:
    """Compare the scores of runs after each round, and the time that rounds took."""
    rows: list[dict[str, Cell]] = []
    for name, found in runs.items():
        every = [_progress_of(run) for run in found]
        row: dict[str, Cell] = {"system": name, "runs": len(found)}
        for column in every[0]:
            known = [value for one in every if (value := one[column]) is not None]
            row[column] = float(np.mean(known)) if known else None
        rows.append(row)
    notes = ["of several runs: means; times: without evaluation, except of batch tuners"]
    table = Table(list(rows[0]), [list(row.values()) for row in rows], notes)
    return Found(table, partial(pictures.draw_progress, runs))


def _progress_of(run: Run) -> dict[str, float | None]:
    """Return how a run went on, finished or not; None is what it did not record.

    Rounds are epochs, or iterations, and round 0 is the start; ``test`` is by the weights that were
    kept, and ``active`` are the features with a weight after the last round.
    """
    dev = run["bleu/dev"].values if "bleu/dev" in run else []
    test = run["bleu/test_tuned"].values if "bleu/test_tuned" in run else []
    active = [series.values[-1] for name, series in run.items() if name.startswith("active/")]
    seconds = round_seconds(run)
    return {
        "rounds": len(dev) - 1 if dev else None,
        "dev before": dev[0] if dev else None,
        "best dev": max(dev, default=None),
        "of round": int(np.argmax(dev)) if dev else None,
        "last dev": dev[-1] if dev else None,
        "test": test[-1] if test else None,
        "s a round": float(seconds.mean()) if seconds.size else None,
        "s in all": float(seconds.sum()) if seconds.size else None,
        "active": sum(active) if active else None,
    }


class Explained(NamedTuple):
    """What a system made of a sentence.

    row, weights: the features of the derivation, and the system's weights.
    """

    name: str
    text: str
    row: Weights
    weights: Weights
    derivation: Derivation | None


def explain(
    sides: tuple[Explained, Explained],
    source: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    comparable: bool,
    rows: int | None = None,
) -> Found:
    """Show two translations of a sentence, their derivations, and the features that differ.

    `comparable` says whether both are of one model; `rows` are drawn.
    """
    a, b = (side.name for side in sides)
    lines = [f"source: {' '.join(source)}"]
    lines += [f"reference: {' '.join(words)}" for words in references]
    for side in sides:
        lines += ["", f"{side.name}: {side.text}"]
        if side.derivation is not None:
            lines += [line for part in side.derivation.parts for line in _tree(part, 1)]
    both = (sides[0].row, sides[1].row), (sides[0].weights, sides[1].weights)
    found: list[Any] = (features.contributions if comparable else features.parts_of_scores)(*both)
    head = ["feature", f"value in {a}", f"value in {b}", f"adds in {a}", f"adds in {b}"]
    if comparable:
        head[1:3] = [f"value {a} - value {b}"]
        leads = sum(one.first for one in found), -sum(one.second for one in found)
        notes = [
            f"in all, {mine} scores its own translation {lead:+.4g} above that of {other}"
            + ("" if lead >= 0 else ", which its search has not found")
            for mine, other, lead in ((a, b, leads[0]), (b, a, leads[1]))
        ]
    else:
        notes = [
            f"{a} and {b} have different models, and neither scores what the other has chosen: "
            "what a feature adds is that to the score of either system's own translation"
        ]
    table = Table(head, [list(one) for one in found], notes, before="\n".join(lines))
    return Found(table, partial(pictures.draw_contributions, found[:rows], (a, b)))


def _tree(derivation: Derivation, depth: int) -> Iterator[str]:
    """Yield the lines of a derivation, each rule a step further to the right than its parent."""
    span = f"{derivation.begin + 1}-{derivation.end}"
    if derivation.end == derivation.begin + 1:
        span = str(derivation.end)
    yield f"{'  ' * depth}{span}: {derivation.source} → {derivation.target}"
    for part in derivation.parts:
        yield from _tree(part, depth + 1)


def compiled(match: str | None) -> re.Pattern[str]:
    """Return the regular expression that names, or sentences, must match."""
    try:
        return re.compile(match or "")
    except re.error as error:
        raise InputError(f"match={match} is no regular expression: {error}") from None
