"""The analyses that ``analyse`` has: what each reads, its table and its picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from string import ascii_uppercase
from typing import IO, Final, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.analyses import pictures
from torchtune_smt.analyses.contributions import contributions, parts_of_scores
from torchtune_smt.analyses.overlap import overlap as overlaps
from torchtune_smt.analyses.progress import Progress, mean_progress
from torchtune_smt.analyses.reordering import ORDERS, reference_order, segments
from torchtune_smt.analyses.rivals import disagreements
from torchtune_smt.analyses.spellings import spellings as count_spellings
from torchtune_smt.cli.compose import refuse_given
from torchtune_smt.cli.decoded_sets import check_lengths, open_run
from torchtune_smt.cli.feature_sets import (
    feature_sets,
    read_weight_set,
    single_outputs,
    tuning_set,
)
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.outputs import common_data, read_outputs
from torchtune_smt.cli.systems import Output, find_systems, unused_grouping
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Derivation, lists_of
from torchtune_smt.evaluation.table import Cell, Table
from torchtune_smt.runs.curves import read_metrics
from torchtune_smt.runs.folder import METRICS

# Of a system's name, as the head of a column.
LONGEST: Final = 20


class Found(NamedTuple):
    """What an analysis has found.

    Attributes
    ----------
    table : Table
    draw : callable
        Draws it to a file in a form, ``png``, ``svg`` or ``pdf``.
    """

    table: Table
    draw: Callable[[IO[bytes], str], None]


def overlap(cfg: DictConfig) -> Found:
    """Count the features that each two sets have in common."""
    sets = feature_sets(cfg)
    labels, notes = _labels(cfg, (one.name for one in sets))
    key = "\n".join(notes)
    if len(sets) < 2:
        raise InputError(
            "an overlap is that of two sets of features; name another system, or what else of this "
            "one, as in of=[dev,test]"
        )
    pairs = [
        (labels[i], labels[j], overlaps(sets[i], sets[j]))
        for i, j in combinations(range(len(sets)), 2)
    ]
    head = ["A", "B", "template", "|A|", "|B|", "|A ∩ B|", "% of A", "% of B"]
    weighed = any(one.same_sign is not None for *_, found in pairs for one in found)
    head += ["same sign", "correlation"] if weighed else []
    rows: list[list[Cell]] = []
    for a, b, found in pairs:
        for one in found:
            shares = [100 * one.both / n if n else None for n in (one.first, one.second)]
            row = [a, b, one.template, one.first, one.second, one.both, *shares]
            rows.append([*row, *((one.same_sign, one.correlation) if weighed else ())])
    table = Table(head, rows, notes, left=3)
    return Found(table, lambda file, form: pictures.draw_overlaps(pairs, file, form, key))


def adaptation(cfg: DictConfig) -> Found:
    """Compare the weights of rival features, or of the same features, in two systems."""
    systems = _two(cfg)
    sets = [read_weight_set(name, output) for name, output in systems.items()]
    (a, b), notes = _labels(cfg, systems)
    key = "\n".join(notes)
    if not sets[0].values.keys() & sets[1].values.keys():
        left, right = (output.path for output in systems.values())
        raise InputError(
            f"has no feature in common with {left}; compare weights of one kind of model",
            path=right,
        )
    pattern = _pattern(cfg)
    first, second = (
        {name: weight for name, weight in one.values.items() if pattern.search(name)}
        for one in sets
    )
    if not first and not second:
        raise InputError(f"match={cfg.match} is in the name of no feature that has a weight")
    rows: list[list[Cell]] = []
    if cfg.rivals:
        found = disagreements(first, second)
        head = ["rivals", "of these", "preferred by", f"w {a}", f"w {b}", "lead"]
        for one in found:
            for system, name in ((a, one.first), (b, one.second)):
                part = name.removeprefix(f"{one.left}~") or "(nothing)"
                rows.append([one.left, part, system, first.get(name), second.get(name), one.lead])
        notes.append(f"rivals of which {a} and {b} prefer different ones: {len(found):,}")
    else:
        head = ["feature", f"w {a}", f"w {b}", "difference"]
        names = sorted(first.keys() | second.keys())
        differences = {n: second.get(n, 0.0) - first.get(n, 0.0) for n in names}
        names.sort(key=lambda name: -abs(differences[name]))
        rows = [[n, first.get(n), second.get(n), differences[n]] for n in names]
        notes.append(f"features with a weight in either: {len(rows):,}")
    dense = {*sets[0].dense, *sets[1].dense}
    return Found(
        Table(head, rows, notes, left=3 if cfg.rivals else 1).shortened(cfg.rows),
        lambda file, form: pictures.draw_weights((a, first), (b, second), dense, file, form, key),
    )


def spellings(cfg: DictConfig) -> Found:
    """Count words where systems were tuned, and the features that translate by them."""
    systems = single_outputs(cfg)
    if cfg.words is None:
        raise InputError("words is missing; give them with words=[WORD,WORD,...]")
    pattern = _pattern(cfg)
    labels, notes = _labels(cfg, systems)
    key = "\n".join(notes)
    found = []
    for label, (name, output) in zip(labels, systems.items(), strict=True):
        weights = read_weight_set(name, output)
        names = [n for n in weights.values if n not in weights.dense and pattern.search(n)]
        tuned_on, references = tuning_set(output)
        found.append(count_spellings(cfg.words, references, names))
        notes.append(f"{label}: tuned on {tuned_on}, {len(references):,} sentences")
        notes[-1] += f"; sparse features with a weight: {len(names):,}"
    head = ["word"]
    for what in ("references", "features"):
        head += [f"{what} of {label}" for label in labels]
    rows: list[list[Cell]] = [
        [word, *(one[n].tokens for one in found), *(one[n].features for one in found)]
        for n, word in enumerate(cfg.words)
    ]
    named = dict(zip(labels, found, strict=True))
    return Found(
        Table(head, rows, notes), lambda file, form: pictures.draw_spellings(named, file, form, key)
    )


def reordering(cfg: DictConfig) -> Found:
    """Find the same words in another order, and whose order a reference has."""
    systems = _two(cfg)
    pattern = _pattern(cfg)
    outputs = read_outputs(
        cfg, {n: [output] for n, output in systems.items()}, with_source=cfg.match is not None
    )
    chosen = list(range(len(outputs.references)))
    if cfg.match is not None:
        if outputs.corpus is None:
            raise InputError("match is of source sentences, which are not known; give data=NAME")
        sources = [" ".join(words) for words in outputs.corpus.source]
        chosen = [i for i in chosen if pattern.search(sources[i])]
    translations = [outputs.translations[output] for output in systems.values()]
    (a, b), notes = _labels(cfg, systems)
    key = "\n".join(notes)
    said = {"first": a, "second": b, "both": "both", "neither": "neither"}
    rows: list[list[Cell]] = []
    sizes: dict[str, Counter[int]] = {order: Counter() for order in ORDERS}
    sentences = set()
    for i in chosen:
        references = [split_words(line) for line in outputs.references[i]]
        for segment in segments(*(split_words(lines[i]) for lines in translations)):
            order = reference_order(segment, references)
            rows.append([i + 1, " ".join(segment.first), " ".join(segment.second), said[order]])
            sizes[order][len(segment.first)] += 1
            sentences.add(i)
    notes.append(f"sentences: {len(chosen):,}, with words in another order: {len(sentences):,}")
    for order in ORDERS:
        count = sizes[order].total()
        share = f" ({count / len(rows):.1%})" if rows else ""
        notes.append(f"segments where a reference has the order of {said[order]}: {count:,}{share}")
    table = Table(["sentence", a, b, "a reference has the order of"], rows, notes, left=4)
    named = {said[order]: found for order, found in sizes.items()}
    return Found(
        table.shortened(cfg.rows), lambda file, form: pictures.draw_orders(named, file, form, key)
    )


def progress(cfg: DictConfig) -> Found:
    """Compare the scores of runs after each round, and the time that rounds took."""
    systems = find_systems(cfg.systems, group_seeds=cfg.group_seeds, marker=METRICS)
    refuse_given(unused_grouping(cfg.systems, systems), HydraConfig.get().overrides.task)
    runs = {
        name: [read_metrics(output.folder or output.path) for output in outputs]
        for name, outputs in systems.items()
    }
    head = ["system", "runs", *Progress._fields]
    rows: list[list[Cell]] = [
        [name, len(found), *mean_progress(found)] for name, found in runs.items()
    ]
    notes = ["of several runs: means; times: without evaluation, except of batch tuners"]
    head = [name.replace("_", " ") for name in head]
    return Found(
        Table(head, rows, notes), lambda file, form: pictures.draw_progress(runs, file, form)
    )


def explain(cfg: DictConfig) -> Found:
    """Show two translations of a sentence, their derivations, and the features that differ."""
    # Only this needs a decoder.
    from torchtune_smt.cli.decoding import other_model, templates_of_others

    systems = _two(cfg)
    if cfg.sentence is None:
        raise InputError("sentence is missing; give its number with sentence=NUMBER, from 1")
    for output in systems.values():
        if output.weights is None:
            raise InputError(
                "lies in no run's folder, and decodes nothing; give a run", path=output.path
            )
    data = common_data(cfg, list(systems.values()), references=False)
    if data is None:
        raise InputError(f"nobody says what {cfg.split} is; give data=NAME")
    with option_errors("data", data):
        corpus = Dataset(**data).require(cfg.split)
    if cfg.sentence > len(corpus.source):
        raise InputError(
            f"sentence={cfg.sentence}: {cfg.split} has {len(corpus.source):,} sentences; give one "
            f"of 1 to {len(corpus.source)}"
        )
    i = cfg.sentence - 1
    paths = [output.weights for output in systems.values() if output.weights is not None]
    check_lengths(data, cfg.split, corpus, paths, [i])
    lines = [f"source: {' '.join(corpus.source[i])}"]
    lines += [f"reference: {' '.join(words)}" for words in corpus.references[i]]
    rows: list[Mapping[str, float]] = []
    weights: list[Mapping[str, float]] = []
    (a, b), notes = _labels(cfg, systems)
    key = "\n".join(notes)
    comparable = other_model(paths) is None
    lacking = templates_of_others(paths) if comparable else [[], []]
    for name, path, more in zip((a, b), paths, lacking, strict=True):
        decoder, own, sources = open_run(path, cfg.split, corpus, more)
        (best,) = lists_of(decoder, [sources[i]], own, 1)
        ids, values = best.row(0)
        rows.append(dict(zip(decoder.features.names(ids), values.tolist(), strict=True)))
        weights.append(
            dict(zip(own.features.names(range(len(own))), own.values.tolist(), strict=True))
        )
        lines += ["", f"{name}: {best.text(0)}"]
        derivation = decoder.derivation(sources[i], own)
        if derivation is not None:
            lines += [line for part in derivation.parts for line in _tree(part, 1)]
    both = (rows[0], rows[1]), (weights[0], weights[1])
    found = contributions(*both) if comparable else parts_of_scores(*both)
    head = ["feature", f"value in {a}", f"value in {b}", f"adds in {a}", f"adds in {b}"]
    if comparable:
        head[1:3] = [f"value {a} - value {b}"]
        leads = sum(one.first for one in found), -sum(one.second for one in found)
        notes += [
            f"in all, {mine} scores its own translation {lead:+.4g} above that of {other}"
            + ("" if lead >= 0 else ", which its search has not found")
            for mine, other, lead in ((a, b, leads[0]), (b, a, leads[1]))
        ]
    else:
        notes.append(
            f"{a} and {b} have different models, and neither scores what the other has chosen: "
            "what a feature adds is that to the score of either system's own translation"
        )
    table = Table(head, [list(one) for one in found], notes, before="\n".join(lines))
    shown = found[: cfg.rows]
    return Found(
        table.shortened(cfg.rows),
        lambda file, form: pictures.draw_contributions(shown, (a, b), file, form, key),
    )


def _tree(derivation: Derivation, depth: int) -> Iterator[str]:
    """Yield the lines of a derivation, each rule a step further to the right than its parent."""
    span = f"{derivation.begin + 1}-{derivation.end}"
    if derivation.end == derivation.begin + 1:
        span = str(derivation.end)
    yield f"{'  ' * depth}{span}: {derivation.source} → {derivation.target}"
    for part in derivation.parts:
        yield from _tree(part, depth + 1)


def _two(cfg: DictConfig) -> dict[str, Output]:
    """Return the two systems that are compared, by name."""
    systems = single_outputs(cfg)
    if len(systems) != 2:
        raise InputError(f"{cfg.analysis} compares two systems, and there are {len(systems)}")
    return systems


def _labels(cfg: DictConfig, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return names for the columns of tables, and notes that tell what they stand for.

    Names of runs may be long: where one is, they are A, B and so on, but not in CSV, which has no
    notes.
    """
    names = list(names)
    if cfg.table == "csv" or max(map(len, names), default=0) <= LONGEST:
        return names, []
    letters = [ascii_uppercase[n % 26] + str(n // 26 or "") for n in range(len(names))]
    return letters, [f"{a}: {name}" for a, name in zip(letters, names, strict=True)]


def _pattern(cfg: DictConfig) -> re.Pattern[str]:
    """Return the regular expression that names, or sentences, must match."""
    try:
        return re.compile(cfg.match or "")
    except re.error as error:
        raise InputError(f"match={cfg.match} is no regular expression: {error}") from None
