"""``tune``: from k-best lists of any tool to weights, and a report of what was gained."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key, program_name, refuse_given, typed
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.systems import paths_of
from torchtune_smt.cli.wire import make, recipe
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.textio import check_written
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import Origin, save_weights
from torchtune_smt.evaluation.tables import folded
from torchtune_smt.evaluation.tuned import (
    ListSet,
    groups_of,
    look_at,
    others_of,
    own_references,
    references_of_files,
    start_of,
    tune_lists,
    with_references,
)
from torchtune_smt.features.strings import StringFeatures, sources_from
from torchtune_smt.features.texts import NAMES
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.metrics.base import Metric

_PARTS: Final = ("sampler", "loss", "regularizer", "optimizer")
# Options that say how lists are read: new ones are to be read so, too.
_READ_SO: Final = frozenset(("scale", "score", "sizes", "format", "missing"))


@hydra_main("tune")
def main(cfg: DictConfig) -> None:
    """Tune weights, write them, and say what was gained."""
    _check_options(cfg)
    paths = _paths(cfg)
    dense: list[str] = []
    metric, solver = make(cfg, "metric", "bind"), _solver(cfg, dense)
    with named_errors("strings"):
        strings = StringFeatures(tuple(cfg.strings), cfg.strings_bits) if cfg.strings else None
    words, features = Vocabulary(), Vocabulary()
    sets = [
        _read_set(cfg, name, paths, words, features, dense, metric, strings)
        for name in ("dev", "test")
        if name in paths
    ]
    start = None if cfg.start is None else start_of(cfg.start, features)
    with named_errors("tune"):
        tuned = tune_lists(
            *sets,
            metric=metric,
            held_out=others_of(metric),
            solver=solver,
            start=start,
            folds=cfg.folds,
            seed=cfg.seed,
            samples=cfg.samples,
            texts=cfg.texts,
            strings=strings,
            least=cfg.strings_least,
            say=lambda text: print(folded([text]), file=sys.stderr, flush=True),
        )
    more = [one.comment() for one in (tuned.text_features, tuned.string_features) if one]
    save_weights(cfg.weights, tuned.weights, Origin.of_lists([sets[0].name], dense), more)
    print(tuned.text())
    print(f"weights: {cfg.weights}", file=sys.stderr)
    if cfg.html is not None:
        from torchtune_smt.evaluation.report import write_tuned

        write_tuned(Path(cfg.html), tuned)
        print(f"report: {cfg.html}", file=sys.stderr)
    print(f"Now try: {_next_command(cfg)}", file=sys.stderr)


def _check_options(cfg: DictConfig) -> None:
    """Raise InputError if options do not go together, or would change nothing."""
    for override in HydraConfig.get().overrides.task:
        key = override_key(override)
        if key.startswith("tuner.") and not key.startswith("tuner.solver."):
            raise InputError(f"{override} would change nothing: one tuning on lists has no rounds")
    needs = dict.fromkeys(("test_references", "test_sizes", "test_sources"), "test")
    needs |= dict.fromkeys(("strings_least", "strings_bits"), "strings")
    unused = {x: f"{needed} is not given" for x, needed in needs.items() if not cfg[needed]}
    refuse_given(unused, HydraConfig.get().overrides.task)
    if (cfg.test is not None or cfg.test_columns) and (odd := {*cfg.columns} ^ {*cfg.test_columns}):
        raise InputError(
            f"columns of dev and of test must be the same ones, and {min(odd)} is of one alone: "
            f"give columns.{min(odd)}=FILE, test_columns.{min(odd)}=FILE and test=LISTS"
        )


def _paths(cfg: DictConfig) -> dict[str, list[str]]:
    names = [n for n in ("dev", "references", "test", "test_references") if cfg[n] is not None]
    paths = {name: paths_of(name, cfg[name]) for name in names}
    beside = [cfg.groups, cfg.start, cfg.sizes, cfg.test_sizes, cfg.sources, cfg.test_sources]
    beside += [*cfg.columns.values(), *cfg.test_columns.values()]
    read = [*chain.from_iterable(paths.values()), *filter(lambda x: isinstance(x, str), beside)]
    check_written({"weights": cfg.weights, "html": cfg.html}, filter(os.path.isfile, read))
    return paths


def _solver(cfg: DictConfig, dense: Sequence[str]) -> Any:
    solving, hydra = recipe(cfg, "tuner.solver", "solve"), HydraConfig.get()
    if solving.names.isdisjoint(_PARTS):
        chosen = f"tuner={hydra.runtime.choices['tuner']}"
        refuse_given({x: f"{chosen} takes no {x}" for x in _PARTS}, hydra.overrides.task)
        return solving.make()
    # It brings what learns, which other solvers do without.
    from torchtune_smt.cli.parts import solver_on_lists

    return solver_on_lists(cfg, solving, lambda: [*dense, *NAMES])


def _read_set(
    cfg: DictConfig,
    name: str,
    paths: Mapping[str, Sequence[str]],
    words: Vocabulary,
    features: Vocabulary,
    dense: list[str],
    metric: Metric,
    strings: StringFeatures | None,
) -> ListSet:
    """Return lists with their references; `dense` gets the names of dense features."""
    test = name == "test"
    own, given = paths[name], paths.get("test_references" if test else "references")
    with named_errors(name):
        stored = read_lists(
            own,
            cfg.format,
            words=words,
            features=features,
            dense=dense or cfg.dense,
            missing=cfg.missing,
            on_error=cfg.on_error,
            score=cfg.score,
            sizes=cfg.test_sizes if test and cfg.test_sizes is not None else cfg.sizes,
            columns=cfg.test_columns if test else cfg.columns,
            scale=cfg.scale,
        )
        stored.check_features(own[0])
        dense[:] = dense or stored.dense_names
    if stored.skipped:
        print(f"{cfg[name]}: {stored.summary()}", file=sys.stderr)
    found: Mapping[int, list[str]]
    if given:
        found = references_of_files(given, stored, more=cfg.on_error == "skip")
    else:
        found = own_references(stored, name)
    called = ", ".join(given or own)
    lists, rows = with_references(stored, found, called, count=cfg.unlisted == "count")
    look_at(lists, rows, own[0], called, getattr(metric, "filters", ()))
    groups = None if cfg.groups is None else groups_of(cfg.groups, lists)
    of = sources_from(cfg.test_sources if test else cfg.sources, strings)(stored)
    source = None if of is None else [of.get(number, "") for number in lists.index.tolist()]
    # Files of one name are told apart by where they lie.
    firsts = [paths[one][0] for one in ("dev", "test") if one in paths]
    alike = len({Path(first).name for first in firsts}) < len(firsts)
    return ListSet(own[0] if alike else Path(own[0]).name, lists, rows, groups, source)


def _next_command(cfg: DictConfig) -> str:
    """Return the command that applies the weights to new lists, as it is typed in a shell."""
    read_so = []
    for option in HydraConfig.get().overrides.task:
        key = override_key(option)
        if key.startswith("columns."):
            read_so.append(f"{key}=NEW_COLUMN")
        elif key == "sizes" and isinstance(cfg.sizes, str):
            read_so.append("sizes=NEW_SIZES")
        elif key.partition(".")[0] in _READ_SO:
            read_so.append(shlex.quote(option.lstrip("+")))
    command = [program_name(), "rerank", typed("weights", str(cfg.weights)), *read_so]
    return f"{' '.join(command)} input=NEW_LISTS output=RERANKED"
