"""``analyse``: what features do in systems, and where two systems differ."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, NamedTuple

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key, quoted, value_of
from torchtune_smt.cli.compose import refuse_given
from torchtune_smt.cli.hydra_main import check_written, option_errors
from torchtune_smt.cli.outputs import common_data, open_run, read_outputs, read_set
from torchtune_smt.cli.run_folder import recorded_tuning
from torchtune_smt.cli.systems import (
    files_read,
    find_systems,
    paths_of,
    run_on_systems,
    unused_grouping,
    write_table,
)
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.pictures import FORMS
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import atomic_path
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Derivation, lists_of
from torchtune_smt.evaluation import features, pictures
from torchtune_smt.evaluation.features import FeatureSet
from torchtune_smt.evaluation.tables import Cell, Table
from torchtune_smt.evaluation.translations import ORDERS, reference_order, segments
from torchtune_smt.kbest.formats import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.curves import Run, read_metrics
from torchtune_smt.runs.folder import METRICS
from torchtune_smt.runs.outputs import Output
from torchtune_smt.runs.times import round_seconds

WEIGHTS: Final = "weights"
# Of a system's name, as the head of a column.
LONGEST: Final = 20
# Sentences that are decoded at a time.
BATCH: Final = 64


class Found(NamedTuple):
    """What an analysis has found.

    Attributes
    ----------
    table : Table
    draw : callable
        Draws it to a file in a form, ``png``, ``svg`` or ``pdf``, with a caption.
    key : list of str
        What letters stand for, which are there in the place of names.
    """

    table: Table
    draw: Callable[..., None]
    key: list[str]


# Each takes the configuration, which says what the systems are, and the options of its own.


def overlap(cfg: DictConfig, of: list[str], n_best: int, data: object) -> Found:
    """Count the features that each two sets have in common."""
    sets = _feature_sets(cfg, of, n_best, data)
    labels, key = _labels(cfg, (one.name for one in sets))
    if len(sets) < 2:
        raise InputError(
            "an overlap is that of two sets of features; name another system, or what else of this "
            "one, as in of=[dev,test]"
        )
    pairs = [
        (labels[i], labels[j], features.overlap(sets[i], sets[j]))
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
    return Found(Table(head, rows, left=3), partial(pictures.draw_overlaps, pairs), key)


def adaptation(cfg: DictConfig, rivals: bool, match: str | None, rows: int | None) -> Found:
    """Compare the weights of rival features, or of the same features, in two systems."""
    systems = _two(cfg)
    sets = [_weight_set(name, output) for name, output in systems.items()]
    (a, b), key = _labels(cfg, systems)
    if not sets[0].values.keys() & sets[1].values.keys():
        left, right = (output.path for output in systems.values())
        raise InputError(
            f"has no feature in common with {left}; compare weights of one kind of model",
            path=right,
        )
    pattern = _pattern(match)
    first, second = (
        {name: weight for name, weight in one.values.items() if pattern.search(name)}
        for one in sets
    )
    if not first and not second:
        raise InputError(f"match={match} is in the name of no feature that has a weight")
    shown: list[list[Cell]] = []
    if rivals:
        found = features.disagreements(first, second)
        head = ["rivals", "of these", "preferred by", f"w {a}", f"w {b}", "lead"]
        for one in found:
            for system, name in ((a, one.first), (b, one.second)):
                part = name.removeprefix(f"{one.left}~") or "(nothing)"
                shown.append([one.left, part, system, first.get(name), second.get(name), one.lead])
        note = f"rivals of which {a} and {b} prefer different ones: {len(found):,}"
    else:
        head = ["feature", f"w {a}", f"w {b}", "difference"]
        names = sorted(first.keys() | second.keys())
        differences = {n: second.get(n, 0.0) - first.get(n, 0.0) for n in names}
        names.sort(key=lambda name: -abs(differences[name]))
        shown = [[n, first.get(n), second.get(n), differences[n]] for n in names]
        note = f"features with a weight in either: {len(shown):,}"
    dense = {*sets[0].dense, *sets[1].dense}
    table = Table(head, shown, [note], left=3 if rivals else 1).shortened(rows)
    return Found(table, partial(pictures.draw_weights, (a, first), (b, second), dense), key)


def spellings(cfg: DictConfig, words: list[str] | None, match: str | None) -> Found:
    """Count words where systems were tuned, and the features that translate by them."""
    systems = _single_outputs(cfg)
    if words is None:
        raise InputError("words is missing; give them with words=[WORD,WORD,...]")
    pattern = _pattern(match)
    labels, key = _labels(cfg, systems)
    found, notes = [], []
    for label, (name, output) in zip(labels, systems.items(), strict=True):
        weights = _weight_set(name, output)
        names = [n for n in weights.values if n not in weights.dense and pattern.search(n)]
        tuned_on, references = _tuning_set(output)
        found.append(features.spellings(words, references, names))
        notes.append(
            f"{label}: tuned on {tuned_on}, {len(references):,} sentences; sparse features with a "
            f"weight: {len(names):,}"
        )
    head = ["word"]
    for what in ("references", "features"):
        head += [f"{what} of {label}" for label in labels]
    rows: list[list[Cell]] = [
        [word, *(one[n].tokens for one in found), *(one[n].features for one in found)]
        for n, word in enumerate(words)
    ]
    named = dict(zip(labels, found, strict=True))
    return Found(Table(head, rows, notes), partial(pictures.draw_spellings, named), key)


def reordering(
    cfg: DictConfig,
    data: object,
    split: str,
    references: object,
    match: str | None,
    rows: int | None,
) -> Found:
    """Find the same words in another order, and whose order a reference has."""
    systems = _two(cfg)
    pattern = _pattern(match)
    every = {name: [output] for name, output in systems.items()}
    outputs = read_outputs(cfg, every, with_source=match is not None)
    chosen = list(range(len(outputs.references)))
    if match is not None:
        if outputs.corpus is None:
            raise InputError("match is of source sentences, which are not known; give data=NAME")
        sources = [" ".join(words) for words in outputs.corpus.source]
        chosen = [i for i in chosen if pattern.search(sources[i])]
    translations = [outputs.translations[output] for output in systems.values()]
    (a, b), key = _labels(cfg, systems)
    said = {"first": a, "second": b, "both": "both", "neither": "neither"}
    shown: list[list[Cell]] = []
    sizes: dict[str, Counter[int]] = {order: Counter() for order in ORDERS}
    sentences = set()
    for i in chosen:
        known = [split_words(line) for line in outputs.references[i]]
        for segment in segments(*(split_words(lines[i]) for lines in translations)):
            order = reference_order(segment, known)
            shown.append([i + 1, " ".join(segment.first), " ".join(segment.second), said[order]])
            sizes[order][len(segment.first)] += 1
            sentences.add(i)
    notes = [f"sentences: {len(chosen):,}, with words in another order: {len(sentences):,}"]
    for order in ORDERS:
        count = sizes[order].total()
        share = f" ({count / len(shown):.1%})" if shown else ""
        notes.append(f"segments where a reference has the order of {said[order]}: {count:,}{share}")
    table = Table(["sentence", a, b, "a reference has the order of"], shown, notes, left=4)
    named = {said[order]: found for order, found in sizes.items()}
    return Found(table.shortened(rows), partial(pictures.draw_orders, named), key)


def progress(cfg: DictConfig, group_seeds: bool) -> Found:
    """Compare the scores of runs after each round, and the time that rounds took."""
    systems = find_systems(cfg.systems, group_seeds=group_seeds, marker=METRICS)
    refuse_given(unused_grouping(cfg.systems, systems), HydraConfig.get().overrides.task)
    runs = {
        name: [read_metrics(output.folder or output.path) for output in outputs]
        for name, outputs in systems.items()
    }
    rows: list[list[Cell]] = []
    for name, found in runs.items():
        every = [_progress_of(run) for run in found]
        row: dict[str, Cell] = {"system": name, "runs": len(found)}
        for column in every[0]:
            known = [one[column] for one in every if one[column] is not None]
            row[column] = float(np.mean(known)) if known else None  # type: ignore[arg-type]
        rows.append(list(row.values()))
    notes = ["of several runs: means; times: without evaluation, except of batch tuners"]
    return Found(Table(list(row), rows, notes), partial(pictures.draw_progress, runs), [])


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


def explain(
    cfg: DictConfig, data: object, split: str, sentence: int | None, rows: int | None
) -> Found:
    """Show two translations of a sentence, their derivations, and the features that differ."""
    # Only this needs a decoder.
    from torchtune_smt.cli.decoding import other_model, templates_of_others

    systems = _two(cfg)
    if sentence is None:
        raise InputError("sentence is missing; give its number with sentence=NUMBER, from 1")
    for output in systems.values():
        if output.weights is None:
            raise InputError(
                "lies in no run's folder, and decodes nothing; give a run", path=output.path
            )
    paths = [output.weights for output in systems.values() if output.weights is not None]
    chosen = common_data(cfg, list(systems.values()), references=False)
    if chosen is None:
        raise InputError(f"nobody says what {split} is; give data=NAME")
    corpus = read_set(chosen, split, paths, sentence - 1)
    i = sentence - 1
    lines = [f"source: {' '.join(corpus.source[i])}"]
    lines += [f"reference: {' '.join(words)}" for words in corpus.references[i]]
    found_rows: list[Mapping[str, float]] = []
    weights: list[Mapping[str, float]] = []
    (a, b), key = _labels(cfg, systems)
    notes = []
    comparable = other_model(paths) is None
    lacking = templates_of_others(paths) if comparable else [[], []]
    for name, path, more in zip((a, b), paths, lacking, strict=True):
        decoder, own, sources = open_run(split, path, corpus, more)
        (best,) = lists_of(decoder, [sources[i]], own, 1)
        found_rows.append(decoder.features.named(*best.row(0)))
        weights.append(own.features.named(range(len(own)), own.values))
        lines += ["", f"{name}: {best.text(0)}"]
        derivation = decoder.derivation(sources[i], own)
        if derivation is not None:
            lines += [line for part in derivation.parts for line in _tree(part, 1)]
    both = (found_rows[0], found_rows[1]), (weights[0], weights[1])
    found: list[Any] = (features.contributions if comparable else features.parts_of_scores)(*both)
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
    draw = partial(pictures.draw_contributions, found[:rows], (a, b))
    return Found(table.shortened(rows), draw, key)


def _tree(derivation: Derivation, depth: int) -> Iterator[str]:
    """Yield the lines of a derivation, each rule a step further to the right than its parent."""
    span = f"{derivation.begin + 1}-{derivation.end}"
    if derivation.end == derivation.begin + 1:
        span = str(derivation.end)
    yield f"{'  ' * depth}{span}: {derivation.source} → {derivation.target}"
    for part in derivation.parts:
        yield from _tree(part, depth + 1)


def _single_outputs(cfg: DictConfig) -> dict[str, Output]:
    """Return the systems that are given, each with its one output."""
    systems = find_systems(cfg.systems, group_seeds=False)
    for name, outputs in systems.items():
        if len(outputs) > 1:
            raise InputError(
                f"{name} has {len(outputs)} runs, and {cfg.analysis} takes one of each system; "
                "give names, as in systems={a:[outputs/A],b:[outputs/B]}"
            )
    return {name: outputs[0] for name, outputs in systems.items()}


def _two(cfg: DictConfig) -> dict[str, Output]:
    """Return the two systems that are compared, by name."""
    systems = _single_outputs(cfg)
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


def _pattern(match: str | None) -> re.Pattern[str]:
    """Return the regular expression that names, or sentences, must match."""
    try:
        return re.compile(match or "")
    except re.error as error:
        raise InputError(f"match={match} is no regular expression: {error}") from None


def _weight_set(name: str, output: Output) -> FeatureSet:
    """Return the weights of a run, or of a file, that are not 0."""
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
    with option_errors("data", recorded.data):
        dataset = Dataset(**recorded.data)
    name = recorded.tune_on
    corpus = dataset.require(name, training=name == "train")
    sentences = Sentences.of(corpus.source, corpus.references)
    drawn = sentences.drawn(recorded.sentences, recorded.seed)
    return name, [sentences.references[i] for i in drawn]


def _feature_sets(cfg: DictConfig, of: list[str], n_best: int, data: object) -> list[FeatureSet]:
    """Return the sets of features that are given: of each system what `of` says."""
    outputs = _single_outputs(cfg)
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
            stored = read_lists(output.path, missing=0)
            dense = frozenset(stored.dense_names)
            sets.append(FeatureSet(system, _fired(stored.lists, n_best), dense))
            continue
        for what in of:
            name = what if len(outputs) == 1 else system
            name += f" {what}" if len(outputs) > 1 and len(of) > 1 else ""
            weights = what == WEIGHTS
            sets.append(
                _weight_set(name, output) if weights else _decoded(cfg, name, output, what, n_best)
            )
    return sets


def _decoded(cfg: DictConfig, name: str, output: Output, what: str, n_best: int) -> FeatureSet:
    """Return the features that fire where a set of the data is decoded."""
    if output.weights is None:
        raise InputError(
            f"lies in no run's folder, and cannot decode {what}; give a run", path=output.path
        )
    data = common_data(cfg, [output], references=False)
    if data is None:
        raise InputError(f"does not say what its {what} is; give data=NAME", path=output.path)
    corpus = read_set(data, what, [output.weights])
    decoder, weights, sources = open_run(what, output.weights, corpus)
    counts: Counter[str] = Counter()
    for begin in range(0, len(sources), BATCH):
        counts.update(_fired(lists_of(decoder, sources[begin : begin + BATCH], weights, n_best)))
    return FeatureSet(name, counts, frozenset(decoder.dense_names))


def _fired(lists: KBestLists, first: int | None = None) -> Counter[str]:
    """Return in how many translations each feature fires, of the first ones of each list."""
    assert lists.features is not None
    counts: Counter[int] = Counter()
    for kbest in lists:
        rows = kbest.rows.between(0, min(len(kbest), first or len(kbest)))
        counts.update(rows.feature[rows.value != 0].tolist())
    return Counter(lists.features.named(counts, np.array(list(counts.values()))))


ANALYSES: Final[dict[str, Callable[..., Found]]] = {
    function.__name__: function
    for function in (overlap, adaptation, spellings, reordering, progress, explain)
}
# Options that all of them take.
_COMMON: Final = {"analysis", "systems", "table", "output", "plot", "hydra"}


def analyse(cfg: DictConfig) -> None:
    """Print the table of an analysis, and draw its picture."""
    options = {name: [*inspect.signature(f).parameters][1:] for name, f in ANALYSES.items()}
    if cfg.analysis not in ANALYSES:
        raise InputError(
            f"there is no analysis {cfg.analysis!r}; choose of {', '.join(ANALYSES)}"
            + did_you_mean(cfg.analysis, ANALYSES)
        )
    for override in HydraConfig.get().overrides.task:
        option = override_key(override).partition(".")[0]
        if option not in _COMMON.union(options[cfg.analysis]):
            takers = [name for name, taken in options.items() if option in taken]
            of = f"it is one of {', '.join(takers)}" if takers else "no analysis does"
            raise InputError(f"{override}: {cfg.analysis} takes no such option; {of}")
    form = "" if cfg.plot is None else Path(cfg.plot).suffix[1:]
    if cfg.plot is not None and form not in FORMS:
        raise InputError(f"plot must end with .png, .svg or .pdf, not {Path(cfg.plot).name}")
    references = cfg.get("references")
    given = [] if references is None else paths_of("references", references)
    check_written({"output": cfg.output, "plot": cfg.plot}, [*files_read(cfg.systems), *given])
    own = {name: cfg.get(name) for name in options[cfg.analysis]}
    found = ANALYSES[cfg.analysis](cfg, **own)
    table = found.table._replace(notes=[*found.key, *found.table.notes])
    forms = {"screen": table.text, "folded": table.text, "text": table.text, "csv": table.csv}
    forms |= {"markdown": table.markdown, "latex": table.latex}
    write_table(cfg, lambda style: forms[style]())
    if cfg.plot is not None:
        with atomic_path(Path(cfg.plot)) as beside, beside.open("wb") as picture:
            found.draw(picture, form, "\n".join(found.key))
        print(f"picture: {cfg.plot}", file=sys.stderr)


def _named(paths: list[str], options: list[str], flags: list[str]) -> list[str]:
    """Return the options, with the analysis that is named first among what is no option."""
    if value_of(options, "analysis") is None and paths:
        options = [*options, f"analysis={quoted(paths.pop(0))}"]
    if not flags and not any(override_key(option) == "analysis" for option in options):
        raise InputError(f"name an analysis; choose of {', '.join(ANALYSES)}")
    return options


def main() -> int:
    """Analyse systems: the first argument names the analysis, others that are no options them."""
    return run_on_systems("analyse", analyse, _named)
