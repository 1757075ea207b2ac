"""``analyse``: what features do in systems, and where two systems differ."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key, quoted, refuse_given, value_of
from torchtune_smt.cli.errors import check_written
from torchtune_smt.cli.systems import (
    compared,
    files_read,
    find_systems,
    open_run,
    paths_of,
    run_on_systems,
    unused_grouping,
    write_table,
)
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.pictures import FORMS
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.textio import atomic_path
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import lists_of
from torchtune_smt.evaluation import analyses, features
from torchtune_smt.evaluation.analyses import Explained, Found
from torchtune_smt.evaluation.features import FeatureSet
from torchtune_smt.kbest.formats import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.curves import read_metrics
from torchtune_smt.runs.folder import METRICS
from torchtune_smt.runs.outputs import Output
from torchtune_smt.runs.records import recorded_tuning

WEIGHTS: Final = "weights"
# Sentences that are decoded at a time.
BATCH: Final = 64

Shown = tuple[Found, list[str]]
"""What was found, and what letters in it stand for."""

# Each analysis takes the configuration, which says what the systems are, and options of its own.


def overlap(cfg: DictConfig, of: list[str], n_best: int, data: object) -> Shown:
    """Count the features that each two sets have in common."""
    sets = _feature_sets(cfg, of, n_best, data)
    names, key = _labels(cfg, (one.name for one in sets))
    if len(sets) < 2:
        raise InputError(
            "an overlap is that of two sets of features; name another system, or what else of this "
            "one, as in of=[dev,test]"
        )
    renamed = [one._replace(name=name) for one, name in zip(sets, names, strict=True)]
    return analyses.overlap(renamed), key


def adaptation(cfg: DictConfig, rivals: bool, match: str | None, rows: int | None) -> Shown:
    """Compare the weights of rival features, or of the same features, in two systems."""
    systems = _two(cfg)
    names, key = _labels(cfg, systems)
    first, second = map(_weight_set, names, systems.values())
    if not first.values.keys() & second.values.keys():
        left, right = (output.path for output in systems.values())
        raise InputError(
            f"has no feature in common with {left}; compare weights of one kind of model",
            path=right,
        )
    return analyses.adaptation((first, second), rivals=rivals, match=match), key


def spellings(cfg: DictConfig, words: list[str] | None, match: str | None) -> Shown:
    """Count words where systems were tuned, and the features that translate by them."""
    systems = _single_outputs(cfg)
    if words is None:
        raise InputError("words is missing; give them with words=[WORD,WORD,...]")
    names, key = _labels(cfg, systems)
    tuned = [
        (_weight_set(name, output), *_tuning_set(output))
        for name, output in zip(names, systems.values(), strict=True)
    ]
    return analyses.spellings(words, tuned, match), key


def reordering(
    cfg: DictConfig,
    data: object,
    split: str,
    references: object,
    match: str | None,
    rows: int | None,
) -> Shown:
    """Find the same words in another order, and whose order a reference has."""
    systems = _two(cfg)
    pattern = analyses.compiled(match)
    outputs = compared(cfg, split).outputs([*systems.values()], with_source=match is not None)
    chosen = list(range(len(outputs.references)))
    if match is not None:
        if outputs.corpus is None:
            raise InputError("match is of source sentences, which are not known; give data=NAME")
        sources = [" ".join(words) for words in outputs.corpus.source]
        chosen = [i for i in chosen if pattern.search(sources[i])]
    translations = [outputs.translations[output] for output in systems.values()]
    names, key = _labels(cfg, systems)
    return analyses.reordering(names, translations, outputs.references, chosen), key


def progress(cfg: DictConfig, group_seeds: bool) -> Shown:
    """Compare the scores of runs after each round, and the time that rounds took."""
    systems = find_systems(cfg.systems, group_seeds=group_seeds, marker=METRICS)
    refuse_given(unused_grouping(cfg.systems, systems), HydraConfig.get().overrides.task)
    runs = {
        name: [read_metrics(output.folder or output.path) for output in outputs]
        for name, outputs in systems.items()
    }
    return analyses.progress(runs), []


def explain(
    cfg: DictConfig, data: object, split: str, sentence: int | None, rows: int | None
) -> Shown:
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
    on, i = compared(cfg, split, takes_references=False), sentence - 1
    chosen = on.find_data([*systems.values()])
    if chosen is None:
        raise InputError(f"nobody says what {split} is; give data=NAME")
    corpus = on.read(chosen, paths, i)
    names, key = _labels(cfg, systems)
    comparable = other_model(paths) is None
    lacking = templates_of_others(paths) if comparable else [[], []]
    sides = []
    for name, path, more in zip(names, paths, lacking, strict=True):
        decoder, own, sources = open_run(split, path, corpus, more)
        (best,) = lists_of(decoder, [sources[i]], own, 1)
        row = decoder.features.named(*best.row(0))
        weights = own.features.named(range(len(own)), own.values)
        derivation = decoder.derivation(sources[i], own)
        sides.append(Explained(name, best.text(0), row, weights, derivation))
    first, second = sides
    source, references = corpus.source[i], corpus.references[i]
    return analyses.explain(
        (first, second), source, references, comparable=comparable, rows=rows
    ), key


def _labels(cfg: DictConfig, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return `torchtune_smt.evaluation.analyses.labels`; not in CSV, which has no notes."""
    return (list(names), []) if cfg.table == "csv" else analyses.labels(names)


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
    with named_errors("data", recorded.data):
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
    on = compared(cfg, what, takes_references=False)
    data = on.find_data([output])
    if data is None:
        raise InputError(f"does not say what its {what} is; give data=NAME", path=output.path)
    corpus = on.read(data, [output.weights])
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


ANALYSES: Final[dict[str, Callable[..., Shown]]] = {
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
    found, key = ANALYSES[cfg.analysis](cfg, **own)
    table = found.table._replace(notes=[*key, *found.table.notes]).shortened(own.get("rows"))
    forms = {"screen": table.text, "folded": table.text, "text": table.text, "csv": table.csv}
    forms |= {"markdown": table.markdown, "latex": table.latex}
    write_table(cfg, lambda style: forms[style]())
    if cfg.plot is not None:
        with atomic_path(Path(cfg.plot)) as beside, beside.open("wb") as picture:
            found.draw(picture, form, "\n".join(key))
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
