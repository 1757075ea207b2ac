"""``tune``: from k-best lists of any tool to weights, and a report of what was gained."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key, program_name, typed
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.systems import paths_of
from torchtune_smt.cli.wire import make
from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import check_written, read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import Origin, save_weights
from torchtune_smt.data.suspicions import output_suspicions
from torchtune_smt.evaluation.tuned import ListSet, tune_lists
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.readers import keyed_lines
from torchtune_smt.kbest.stored_lists import StoredLists, names_in
from torchtune_smt.metrics import CharacterErrorRate, WordErrorRate
from torchtune_smt.metrics.base import Metric, measure_of
from torchtune_smt.metrics.chrf import ChrF
from torchtune_smt.metrics.mix import CorpusBleu
from torchtune_smt.metrics.ter import TranslationEditRate
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.outputs import check_text

# Reported beside what is tuned, and never tuned on.
HELD_OUT: Final[tuple[tuple[Metric, ...], ...]] = (
    (WordErrorRate(), CharacterErrorRate()),
    (CorpusBleu(), ChrF(), TranslationEditRate()),
)

# Options that say how lists are read: new ones are to be read so, too.
_READ_SO: Final = frozenset(("scale", "score", "sizes", "format", "missing"))


@hydra_main("tune")
def main(cfg: DictConfig) -> None:
    """Tune weights, write them, and say what was gained."""
    for override in HydraConfig.get().overrides.task:
        key = override_key(override)
        if key.startswith("tuner.") and not key.startswith("tuner.solver."):
            raise InputError(f"{override} would change nothing: one tuning on lists has no rounds")
    if cfg.test is None and cfg.test_references is not None:
        raise InputError("test_references are given, and no test")
    if (cfg.test is not None or cfg.test_columns) and (odd := {*cfg.columns} ^ {*cfg.test_columns}):
        raise InputError(
            f"columns of dev and of test must be the same ones, and {min(odd)} is of one alone: "
            f"give columns.{min(odd)}=FILE, test_columns.{min(odd)}=FILE and test=LISTS"
        )
    names = [n for n in ("dev", "references", "test", "test_references") if cfg[n] is not None]
    paths = {name: paths_of(name, cfg[name]) for name in names}
    for mine, theirs in (("dev", "test"), ("references", "test_references")):
        shared = {os.path.realpath(p) for p in paths.get(mine, ())}
        for path in paths.get(theirs, ()):
            if os.path.realpath(path) in shared:
                raise InputError(
                    f"is both {mine} and {theirs}: what is tuned on a test set says nothing of "
                    "other sentences",
                    path=path,
                )
    with named_errors("tune"):
        one_of("count", "leave").check("unlisted", cfg.unlisted)
    beside = [cfg.groups, cfg.start, cfg.sizes, cfg.test_sizes]
    beside += [*cfg.columns.values(), *cfg.test_columns.values()]
    read = [*chain.from_iterable(paths.values()), *filter(lambda x: isinstance(x, str), beside)]
    check_written({"weights": cfg.weights, "html": cfg.html}, filter(os.path.isfile, read))
    firsts = {name: some[0] for name, some in paths.items() if name in ("dev", "test")}
    labels = {name: Path(first).name for name, first in firsts.items()}
    if len({*labels.values()}) < len(labels):
        labels = firsts
    metric = make(cfg, "metric", "bind")
    solver = make(cfg, "tuner.solver", "solve")
    words, features = Vocabulary(), Vocabulary()
    dense: list[str] = []
    sets = []
    for name, references in (("dev", "references"), ("test", "test_references")):
        if name not in paths:
            continue
        with named_errors(name):
            stored = read_lists(
                paths[name],
                cfg.format,
                words=words,
                features=features,
                dense=dense or cfg.dense,
                missing=cfg.missing,
                on_error=cfg.on_error,
                score=cfg.score,
                sizes=cfg.sizes if name == "dev" or cfg.test_sizes is None else cfg.test_sizes,
                columns=cfg.columns if name == "dev" else cfg.test_columns,
                scale=cfg.scale,
            )
            stored.check_features(paths[name][0])
            dense = dense or list(stored.dense_names)
        if stored.skipped:
            print(f"{cfg[name]}: {stored.summary()}", file=sys.stderr)
        given = paths.get(references)
        found = _own(stored, name) if given is None else _of_files(given, stored)
        called = ", ".join(given or paths[name])
        lists, rows = _with_references(stored, found, called, count=cfg.unlisted == "count")
        _look_at(lists, rows, paths[name][0], called, getattr(metric, "filters", ()))
        groups = None if cfg.groups is None else _groups(cfg.groups, lists)
        sets.append(ListSet(labels[name], lists, rows, groups))
    start = None
    if cfg.start is not None:
        known, values = read_any_weights(cfg.start)
        own_names = names_in(features, known.names(range(len(known))))
        start = FrozenWeights(Vocabulary(own_names), values)
        if not np.any(values[features.lookup(own_names) >= 0]):
            raise InputError("has no weight for any feature of these lists", path=cfg.start)
    own = measure_of(metric)
    family = next((some for some in HELD_OUT if own in map(measure_of, some)), HELD_OUT[1])
    with named_errors("tune"):
        tuned = tune_lists(
            *sets,
            metric=metric,
            held_out=[other for other in family if measure_of(other) != own],
            solver=solver,
            start=start,
            folds=cfg.folds,
            seed=cfg.seed,
            samples=cfg.samples,
            texts=cfg.texts,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    text = "" if tuned.text_features is None else tuned.text_features.comment()
    save_weights(cfg.weights, tuned.weights, Origin.of_lists([sets[0].name], dense), text)
    print(tuned.text())
    print(f"weights: {cfg.weights}", file=sys.stderr)
    if cfg.html is not None:
        from torchtune_smt.evaluation.report import write_tuned

        write_tuned(Path(cfg.html), tuned)
        print(f"report: {cfg.html}", file=sys.stderr)
    read_so = []
    for option in HydraConfig.get().overrides.task:
        key = override_key(option)
        if key.startswith("columns."):
            read_so.append(f"{key}=NEW_COLUMN")
        elif key == "sizes" and isinstance(cfg.sizes, str):
            read_so.append("sizes=NEW_SIZES")
        elif key.partition(".")[0] in _READ_SO:
            read_so.append(shlex.quote(option.lstrip("+")))
    next_one = [program_name(), "rerank", typed("weights", str(cfg.weights)), *read_so]
    print(f"Now try: {' '.join(next_one)} input=NEW_LISTS output=RERANKED", file=sys.stderr)


def _with_references(
    stored: StoredLists, found: Mapping[int, list[str]], name: str, *, count: bool
) -> tuple[KBestLists, list[list[list[str]]]]:
    """Return lists, and references by their numbers; see `_of_files`.

    count: sentences without a list get one of an empty hypothesis.
    """
    lists = stored.lists
    bare = sorted(found.keys() - set(lists.index.tolist()))
    if bare:
        called = str(bare[0]) if lists.ids is None else lists.ids[bare[0]]
        how = "leave" if count else "count"
        print(
            f"{name}: {len(bare):,} of {len(found):,} sentences have references and no list, "
            f"{called} among them: they {'count as empty ones' if count else 'count nowhere'} "
            f"(unlisted={how} {'leaves them out' if count else 'counts them as empty ones'})",
            file=sys.stderr,
        )
    if count and bare:
        lists = lists.with_empty(bare)
    rows: list[list[list[str]]] = [[] for _ in range(int(lists.index.max(initial=-1)) + 1)]
    for number in lists.index.tolist():
        rows[number] = [split_words(text) for text in found[number]]
    return lists, rows


def _look_at(
    lists: KBestLists,
    references: Sequence[Sequence[Sequence[str]]],
    name: str,
    called: str,
    filters: Sequence[str],
) -> None:
    """Tell what is suspicious about lists and their references.

    Raises InputError: nothing can be tuned on them.

    filters: what the metric leaves out of account.
    """
    of_lists = [references[number] for number in lists.index.tolist()]
    if not any(map(any, of_lists)):
        raise InputError("has no word: no error rate is defined without", path=called)
    if (np.diff(lists.begin) == 1).all():
        raise InputError("has one hypothesis a sentence, and nothing to choose", path=name)
    first = [split_words(lists.text(h)) for h in lists.begin[:-1].tolist()]
    splits = not {"bpe", "detokenize"}.intersection(filters)
    for said in output_suspicions(
        name, first, of_lists, case="lowercase" not in filters, tokens=splits
    ):
        print(f"warning: {said}", file=sys.stderr)


def _own(stored: StoredLists, name: str) -> Mapping[int, list[str]]:
    """Return the references that lists have themselves."""
    own = stored.references
    if any(n not in own for n in stored.lists.index.tolist()):
        option = "references" if name == "dev" else f"{name}_references"
        raise InputError(
            f"{option} is null, and {'some' if own else 'none'} of the lists of {name} have "
            f"references of their own; give a file with {option}=FILE"
        )
    return own


def _of_files(paths: Sequence[str], stored: StoredLists) -> dict[int, list[str]]:
    """Return the references of each sentence, by its number: of lines with ids, or by lines.

    Sentences without a list get numbers, too.
    """
    lists, n = stored.lists, stored.n_sentences
    ids = None if lists.ids is None else lists.ids.names(range(len(lists.ids)))
    there = set() if ids is None else {ids[number] for number in lists.index.tolist()}
    found: dict[int, list[str]] = {}
    for path in paths:
        lines = read_lines(Path(path))
        check_text(path, lines)
        firsts = {line.partition(" ")[0] for line in lines}
        if ids is None:
            texts = {str(number): text for number, text in enumerate(lines)}
            needed = {str(number) for number in range(n)}
        elif all(id.isdecimal() for id in ids) and not firsts.issuperset(there):
            called = {int(id): id for id in ids}
            texts = {called.get(i, str(i)): text for i, text in enumerate(lines)}
            needed, n = set(ids), max(called) + 1
        else:
            texts = {id: text for id, (text, _) in keyed_lines(Path(path), lines).items()}
            if lacking := [id for id in ids if id in there and id not in texts]:
                raise InputError(
                    f"has no line for {lacking[0]!r}, which has a list; each begins with the id of "
                    "its sentence",
                    path=path,
                )
            needed = set()
        if needed - texts.keys() or (ids is None and len(lines) != n):
            hint = "" if ids is None or "0" in needed else " (do the ids count from 1?)"
            raise InputError(
                f"has {len(lines)} lines, and the lists are of {n} sentences, counted from 0"
                f"{hint}; there must be a line for each",
                path=path,
            )
        numbers = map(int, texts) if lists.ids is None else lists.ids.intern(list(texts)).tolist()
        for number, text in zip(numbers, texts.values(), strict=True):
            found.setdefault(number, []).append(text)
    return found


def _groups(given: str, lists: KBestLists) -> list[str]:
    """Return the group of each list."""
    numbers: Any = lists.index
    ids = (
        [str(number) for number in numbers.tolist()]
        if lists.ids is None
        else lists.ids.names(numbers)
    )
    if Path(given).is_file():
        lines = keyed_lines(Path(given))
        for id in ids:
            if id not in lines:
                raise InputError(f"has no line for {id!r}, which has a list", path=given)
        return [lines[id][0].strip() for id in ids]
    for id in ids:
        if given not in id:
            raise InputError(f"groups={given} is no file, and no part of the id {id!r}")
    return [id.partition(given)[0] for id in ids]
