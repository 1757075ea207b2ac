"""``tune``: from k-best lists of any tool to weights, and a report of what was gained."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key, program_name, typed
from torchtune_smt.cli.errors import check_written, option_errors
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.systems import paths_of
from torchtune_smt.cli.wire import make
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import Origin, save_weights
from torchtune_smt.evaluation.tuned import ListSet, tune_lists
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.readers import keyed_lines
from torchtune_smt.kbest.stored_lists import StoredLists
from torchtune_smt.metrics import CharacterErrorRate, WordErrorRate
from torchtune_smt.metrics.base import Metric, measure_of
from torchtune_smt.metrics.chrf import ChrF
from torchtune_smt.metrics.mix import CorpusBleu
from torchtune_smt.metrics.ter import TranslationEditRate
from torchtune_smt.models.moses_ini import read_any_weights

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
    read = [path for some in paths.values() for path in some if Path(path).is_file()]
    check_written({"weights": cfg.weights, "html": cfg.html}, read)
    metric = make(cfg, "metric", "bind")
    solver = make(cfg, "tuner.solver", "solve")
    words, features = Vocabulary(), Vocabulary()
    dense: list[str] = []
    sets = []
    for name, references in (("dev", "references"), ("test", "test_references")):
        if name not in paths:
            continue
        with option_errors(name):
            stored = read_lists(
                paths[name],
                cfg.format,
                words=words,
                features=features,
                dense=dense or cfg.dense,
                missing=cfg.missing,
                on_error=cfg.on_error,
                score=cfg.score,
                sizes=cfg.sizes,
                columns=cfg.columns if name == "dev" else cfg.test_columns,
                scale=cfg.scale,
            )
            stored.check_features(paths[name][0])
            dense = dense or list(stored.dense_names)
        if stored.skipped:
            print(f"{cfg[name]}: {stored.summary()}", file=sys.stderr)
        lists = stored.lists
        sets.append(
            ListSet(
                Path(paths[name][0]).name,
                lists,
                _references(paths[references], lists, stored.n_sentences)
                if references in paths
                else _own_references(stored, name),
                None if cfg.groups is None else _groups(cfg.groups, lists),
            )
        )
    start = None
    if cfg.start is not None:
        known, values = read_any_weights(cfg.start)
        start = FrozenWeights(known, values)
    own = measure_of(metric)
    family = next((some for some in HELD_OUT if own in map(measure_of, some)), HELD_OUT[1])
    with option_errors("tune"):
        tuned = tune_lists(
            *sets,
            metric=metric,
            held_out=[other for other in family if measure_of(other) != own],
            solver=solver,
            start=start,
            folds=cfg.folds,
            seed=cfg.seed,
            samples=cfg.samples,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    save_weights(cfg.weights, tuned.weights, Origin.of_lists([sets[0].name], dense))
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
        elif key.partition(".")[0] in _READ_SO:
            read_so.append(shlex.quote(option.lstrip("+")))
    next_one = [program_name(), "rerank", typed("weights", str(cfg.weights)), *read_so]
    print(f"Now try: {' '.join(next_one)} input=NEW_LISTS output=RERANKED", file=sys.stderr)


def _own_references(stored: StoredLists, name: str) -> list[list[list[str]]]:
    """Return the references that lists have themselves."""
    own = stored.references
    missing = [n for n in stored.lists.index.tolist() if n not in own]
    if missing:
        option = "references" if name == "dev" else f"{name}_references"
        raise InputError(
            f"{option} is null, and {'some' if own else 'none'} of the lists of {name} have "
            f"references of their own; give a file with {option}=FILE"
        )
    last = int(stored.lists.index.max(initial=-1)) + 1
    return [[split_words(text) for text in own.get(n, [])] for n in range(last)]


def _references(paths: Sequence[str], lists: KBestLists, n: int) -> list[list[list[str]]]:
    """Return the references of each sentence, by its number: of lines with ids, or by lines."""
    ids = None if lists.ids is None else lists.ids.names(range(len(lists.ids)))
    found: list[list[list[str]]] = [[] for _ in range(n if ids is None else len(ids))]
    for path in paths:
        lines = read_lines(Path(path))
        firsts = {line.partition(" ")[0] for line in lines}
        if ids is None or (all(id.isdecimal() for id in ids) and not firsts.issuperset(ids)):
            numbers = range(n) if ids is None else [int(id) for id in ids]
            if (ids is None and len(lines) != n) or max(numbers, default=-1) >= len(lines):
                raise InputError(
                    f"has {len(lines)} lines, and the lists are of {max(numbers) + 1} sentences; "
                    "there must be a line for each",
                    path=path,
                )
            for row, number in zip(found, numbers, strict=True):
                row.append(split_words(lines[number]))
            continue
        texts = keyed_lines(Path(path))
        there = {ids[number] for number in lists.index.tolist()}
        if lacking := texts.keys() - there:
            print(
                f"{path}: {len(lacking):,} of {len(texts):,} lines are of sentences without a "
                "list, and count nowhere",
                file=sys.stderr,
            )
        for row, id in zip(found, ids, strict=True):
            if id not in texts:
                raise InputError(
                    f"has no line for {id!r}, which has a list; each begins with the id of its "
                    "sentence",
                    path=path,
                )
            row.append(split_words(texts[id][0]))
    return found[: int(lists.index.max(initial=-1)) + 1]


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
