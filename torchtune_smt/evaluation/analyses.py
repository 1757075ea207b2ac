"""What features do in systems, and where two systems differ: analyses, as tables and pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, NamedTuple

import numpy as np

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.text import split_words
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Derivation, lists_of
from torchtune_smt.evaluation import features, pictures
from torchtune_smt.evaluation.features import FeatureSet, Weights
from torchtune_smt.evaluation.tables import Cell, Table
from torchtune_smt.evaluation.translations import ORDERS, reference_order, segments
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.curves import Run, read_metrics, round_seconds
from torchtune_smt.runs.folder import METRICS
from torchtune_smt.runs.outputs import Compared, Output
from torchtune_smt.runs.records import recorded_tuning

# Of a system's name, as the head of a column.
LONGEST: Final = 20
WEIGHTS: Final = "weights"
# Sentences that are decoded at a time.
BATCH: Final = 64


class Found(NamedTuple):
    """What an analysis has found; `draw` draws it, and `key` says what letters stand for."""

    table: Table
    draw: Callable[..., None]
    key: Sequence[str] = ()


@dataclass(frozen=True)
class Analysis:
    """What an analysis is given besides options of its own.

    name: of the analysis.
    find: returns the outputs of each system, as `torchtune_smt.runs.outputs.found_systems` does.
    on: returns the set of a name on which systems are compared, and may take references.
    templates_of_others: returns for each of some runs, given by their weights, the templates of the
        others that it lacks; None where they have different models.
    whole_names: names of systems stay as long as they are in the heads of columns.
    """

    name: str
    find: Callable[..., dict[str, list[Output]]]
    on: Callable[[str, bool], Compared]
    templates_of_others: Callable[[Sequence[Path]], list[list[Any]] | None]
    whole_names: bool = False

    def labels(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return names for columns, A, B and so on where one is long, and notes that tell so."""
        names = list(names)
        if self.whole_names or max(map(len, names), default=0) <= LONGEST:
            return names, []
        letters = [ascii_uppercase[n % 26] + str(n // 26 or "") for n in range(len(names))]
        return letters, [f"{a}: {name}" for a, name in zip(letters, names, strict=True)]

    def outputs(self) -> dict[str, Output]:
        """Return the systems that are given, each with its one output."""
        systems = self.find(group_seeds=False)
        for name, found in systems.items():
            if len(found) > 1:
                raise InputError(
                    f"{name} has {len(found)} runs, and {self.name} takes one of each system; give "
                    "names, as in systems={a:[outputs/A],b:[outputs/B]}"
                )
        return {name: found[0] for name, found in systems.items()}

    def two(self) -> dict[str, Output]:
        """Return the two systems that are compared, by name."""
        systems = self.outputs()
        if len(systems) != 2:
            raise InputError(f"{self.name} compares two systems, and there are {len(systems)}")
        return systems


# Arguments are options of the command; those that say which set is meant are read by `Analysis.on`.


def overlap(given: Analysis, of: list[str], n_best: int, data: object) -> Found:
    """Count the features that each two sets have in common."""
    sets = _feature_sets(given, of, n_best, data)
    names, key = given.labels(one.name for one in sets)
    if len(sets) < 2:
        raise InputError(
            "an overlap is that of two sets of features; name another system, or what else of this "
            "one, as in of=[dev,test]"
        )
    sets = [one._replace(name=name) for one, name in zip(sets, names, strict=True)]
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
    return Found(Table(head, rows, left=3), partial(pictures.draw_overlaps, pairs), key)


def adaptation(given: Analysis, rivals: bool, match: str | None, rows: int | None) -> Found:
    """Compare the weights of rivals, or of the same features; names `match` an expression."""
    systems = given.two()
    (a, b), key = given.labels(systems)
    sets = [_weight_set(*one) for one in zip((a, b), systems.values(), strict=True)]
    pattern = _compiled(match)
    first, second = (
        {name: weight for name, weight in one.values.items() if pattern.search(name)}
        for one in sets
    )
    if not first and not second:
        raise InputError(f"match={match} is in the name of no feature that has a weight")
    cells: list[list[Cell]] = []
    if rivals:
        found = features.disagreements(first, second)
        head = ["rivals", "of these", "preferred by", f"w {a}", f"w {b}", "lead"]
        for one in found:
            for system, name in ((a, one.first), (b, one.second)):
                part = name.removeprefix(f"{one.left}~") or "(nothing)"
                cells.append([one.left, part, system, first.get(name), second.get(name), one.lead])
        note = f"rivals of which {a} and {b} prefer different ones: {len(found):,}"
    else:
        head = ["feature", f"w {a}", f"w {b}", "difference"]
        names = sorted(first.keys() | second.keys())
        differences = {n: second.get(n, 0.0) - first.get(n, 0.0) for n in names}
        names.sort(key=lambda name: -abs(differences[name]))
        cells = [[n, first.get(n), second.get(n), differences[n]] for n in names]
        note = f"features with a weight in either: {len(cells):,}"
    dense = {*sets[0].dense, *sets[1].dense}
    draw = partial(pictures.draw_weights, (a, first), (b, second), dense)
    return Found(Table(head, cells, [note], left=3 if rivals else 1), draw, key)


def spellings(given: Analysis, words: list[str] | None, match: str | None) -> Found:
    """Count words where systems were tuned, and the features that translate by them."""
    outputs = given.outputs()
    if words is None:
        raise InputError("words is missing; give them with words=[WORD,WORD,...]")
    labels, key = given.labels(outputs)
    systems = [
        (_weight_set(name, output), *_tuning_set(output))
        for name, output in zip(labels, outputs.values(), strict=True)
    ]
    pattern = _compiled(match)
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
    return Found(Table(head, rows, notes), partial(pictures.draw_spellings, found), key)


def reordering(
    given: Analysis,
    data: object,
    split: str,
    references: object,
    match: str | None,
    rows: int | None,
) -> Found:
    """Find the same words in another order in two systems, and whose order a reference has."""
    systems = given.two()
    pattern = _compiled(match)
    outputs = given.on(split, True).outputs([*systems.values()], with_source=match is not None)
    chosen = list(range(len(outputs.references)))
    if match is not None:
        if outputs.corpus is None:
            raise InputError("match is of source sentences, which are not known; give data=NAME")
        sources = [" ".join(words) for words in outputs.corpus.source]
        chosen = [i for i in chosen if pattern.search(sources[i])]
    translations = [outputs.translations[output] for output in systems.values()]
    (a, b), key = given.labels(systems)
    said = {"first": a, "second": b, "both": "both", "neither": "neither"}
    cells: list[list[Cell]] = []
    sizes: dict[str, Counter[int]] = {order: Counter() for order in ORDERS}
    sentences = set()
    for i in chosen:
        known = [split_words(line) for line in outputs.references[i]]
        for segment in segments(*(split_words(lines[i]) for lines in translations)):
            order = reference_order(segment, known)
            cells.append([i + 1, *map(" ".join, segment), said[order]])
            sizes[order][len(segment[0])] += 1
            sentences.add(i)
    notes = [f"sentences: {len(chosen):,}, with words in another order: {len(sentences):,}"]
    for order in ORDERS:
        count = sizes[order].total()
        share = f" ({count / len(cells):.1%})" if cells else ""
        notes.append(f"segments where a reference has the order of {said[order]}: {count:,}{share}")
    named = {said[order]: found for order, found in sizes.items()}
    table = Table(["sentence", a, b, "a reference has the order of"], cells, notes, left=4)
    return Found(table, partial(pictures.draw_orders, named), key)


def progress(given: Analysis, group_seeds: bool) -> Found:
    """Compare the scores of runs after each round, and the time that rounds took."""
    runs = {
        name: [read_metrics(output.folder or output.path) for output in outputs]
        for name, outputs in given.find(group_seeds=group_seeds, marker=METRICS).items()
    }
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
    """Return how a run went on; None is what it did not record. Round 0 is the start."""
    steps, dev = run.get("bleu/dev", ([], []))
    test = run["bleu/test_tuned"].values if "bleu/test_tuned" in run else []
    found = [int(run[name].values[-1]) for name in run if name.startswith("best_")]
    if not found and dev and "metric/dev" not in run:
        # While it goes on; of another metric nobody knows here which scores are better.
        found = [int(np.argmax(dev))]
    best = found[0] if found and found[0] < len(dev) else None
    at = -1 if best is None else steps[best]
    active = [
        dict(zip(*series, strict=True)).get(at, series.values[-1])
        for name, series in run.items()
        if name.startswith("active/")
    ]
    seconds = round_seconds(run)
    return {
        "rounds": len(dev) - 1 if dev else None,
        "dev before": dev[0] if dev else None,
        "best dev": None if best is None else dev[best],
        "of round": best,
        "last dev": dev[-1] if dev else None,
        "test": test[-1] if test else None,
        "s a round": float(seconds.mean()) if seconds.size else None,
        "s in all": float(seconds.sum()) if seconds.size else None,
        "active": sum(active) if active else None,
    }


def explain(
    given: Analysis, data: object, split: str, sentence: int | None, rows: int | None
) -> Found:
    """Show two translations of a sentence, their derivations, and the features that differ."""
    systems = given.two()
    if sentence is None:
        raise InputError("sentence is missing; give its number with sentence=NUMBER, from 1")
    paths = [output.own_weights(split) for output in systems.values()]
    on, i = given.on(split, False), sentence - 1
    corpus = on.read(on.find_data([*systems.values()]), paths, i)
    (a, b), key = given.labels(systems)
    lacking = given.templates_of_others(paths)
    comparable = lacking is not None
    lines = [f"source: {' '.join(corpus.source[i])}"]
    lines += [f"reference: {' '.join(words)}" for words in corpus.references[i]]
    rows_of, weights_of = list[Weights](), list[Weights]()
    for name, path, more in zip((a, b), paths, lacking or ([], []), strict=True):
        decoder, own, sources = on.open_run(split, path, corpus, more)
        (best,) = lists_of(decoder, [sources[i]], own, 1)
        rows_of.append(decoder.features.named(*best.row(0)))
        weights_of.append(own.features.named(range(len(own)), own.values))
        lines += ["", f"{name}: {best.text(0)}"]
        if (derivation := decoder.derivation(sources[i], own)) is not None:
            lines += [line for part in derivation.parts for line in _tree(part, 1)]
    found = features.contributions(rows_of, weights_of, comparable=comparable)
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
    cells: list[list[Cell]] = [[x.name, *x.values, x.first, x.second] for x in found]
    table = Table(head, cells, notes, before="\n".join(lines))
    return Found(table, partial(pictures.draw_contributions, found[:rows], (a, b)), key)


ANALYSES: Final[dict[str, Callable[..., Found]]] = {
    function.__name__: function
    for function in (overlap, adaptation, spellings, reordering, progress, explain)
}


def _weight_set(name: str, output: Output) -> FeatureSet:
    path = output.path if output.weights is None else output.weights
    if output.kind == "lists":
        raise InputError("is an n-best list, and has no weights", path=path)
    names, values = read_any_weights(path)
    weights = names.named(range(len(names)), values)
    origin = None if path.suffix == ".ini" else read_origin(path)
    if origin is not None and origin.dense is not None:
        dense = frozenset(origin.dense)
    elif origin is None and path.suffix != ".ini":
        dense = features.dense_by_names(weights)
    else:
        dense = features.dense_features(weights, moses=origin is None or not origin.is_model)
    return FeatureSet(name, {n: w for n, w in weights.items() if w}, dense, are_weights=True)


def _tuning_set(output: Output) -> tuple[str, list[list[list[str]]]]:
    """Return what a run was tuned on, in words, and the references of these sentences."""
    folder = output.folder
    recorded = None if folder is None else recorded_tuning(folder)
    if folder is None or recorded is None:
        raise InputError("does not say what it was tuned on; give a run", path=output.path)
    data, name, count, seed = recorded
    with named_errors("data", data):
        dataset = Dataset(**data)
    corpus = dataset.require(name, training=name == "train")
    sentences = Sentences.of(corpus.source, corpus.references)
    drawn = sentences.drawn(count, seed)
    return name, [sentences.references[i] for i in drawn]


def _feature_sets(given: Analysis, of: list[str], n_best: int, data: object) -> list[FeatureSet]:
    outputs = given.outputs()
    decoded = [what for what in of if what != WEIGHTS]
    if data is not None and not decoded:
        raise InputError("data is given, and nothing is decoded; say what, as in of=[dev,test]")
    are_lists = [output.kind == "lists" for output in outputs.values()]
    if all(are_lists) and list(of) != [WEIGHTS]:
        raise InputError(
            f"of=[{','.join(of)}] would change nothing: n-best lists have the features that they "
            "have; leave it out"
        )
    # Unless it is what it is by itself.
    if n_best != 1 and not decoded and not any(are_lists):
        raise InputError(
            f"n_best={n_best} would change nothing: weights have no translations; leave it out, or "
            "say what is decoded, as in of=[dev,test]"
        )
    sets = []
    for system, output in outputs.items():
        if output.kind == "lists":
            stored = read_lists(output.path, "bars", missing=0)
            dense = frozenset(stored.dense_names)
            sets.append(FeatureSet(system, _fired(stored.lists, n_best), dense))
            continue
        for what in of:
            name = what if len(outputs) == 1 else system
            name += f" {what}" if len(outputs) > 1 and len(of) > 1 else ""
            if what == WEIGHTS:
                sets.append(_weight_set(name, output))
            else:
                sets.append(_decoded(given, name, output, what, n_best))
    return sets


def _decoded(given: Analysis, name: str, output: Output, what: str, n_best: int) -> FeatureSet:
    path, on = output.own_weights(what), given.on(what, False)
    corpus = on.read(on.find_data([output]), [path])
    decoder, weights, sources = on.open_run(what, path, corpus)
    counts: Counter[str] = Counter()
    for begin in range(0, len(sources), BATCH):
        counts.update(_fired(lists_of(decoder, sources[begin : begin + BATCH], weights, n_best)))
    return FeatureSet(name, counts, frozenset(decoder.dense_names))


def _fired(lists: KBestLists, first: int | None = None) -> Counter[str]:
    """Return in how many of the first translations of each list each feature fires."""
    assert lists.features is not None
    counts: Counter[int] = Counter()
    for kbest in lists:
        rows = kbest.rows.between(0, min(len(kbest), first or len(kbest)))
        counts.update(rows.feature[rows.value != 0].tolist())
    return Counter(lists.features.named(counts, np.array(list(counts.values()))))


def _tree(derivation: Derivation, depth: int) -> Iterator[str]:
    span = f"{derivation.begin + 1}-{derivation.end}"
    if derivation.end == derivation.begin + 1:
        span = str(derivation.end)
    yield f"{'  ' * depth}{span}: {derivation.source} → {derivation.target}"
    for part in derivation.parts:
        yield from _tree(part, depth + 1)


def _compiled(match: str | None) -> re.Pattern[str]:
    try:
        return re.compile(match or "")
    except re.error as error:
        raise InputError(f"match={match} is no regular expression: {error}") from None
