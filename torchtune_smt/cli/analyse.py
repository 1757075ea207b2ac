"""``analyse``: what features do in systems, and where two systems differ."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import (
    override_key,
    quoted,
    split_arguments,
    split_paths,
    systems_option,
    value_of,
)
from torchtune_smt.cli.feature_sets import feature_sets
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.stopping import raise_if_stopped
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.pictures import FORMS
from torchtune_smt.core.textio import atomic_path, atomic_writer
from torchtune_smt.evaluation.table import Cell, Table


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


def _overlap(cfg: DictConfig) -> Found:
    """Return what each two sets of features have in common."""
    from torchtune_smt.analyses.overlap import overlap
    from torchtune_smt.analyses.pictures import draw_overlaps

    sets = feature_sets(cfg)
    if len(sets) < 2:
        raise InputError(
            "an overlap is that of two sets of features; name another system, or what else of this "
            "one, as in of=[dev,test]"
        )
    pairs = [(a.name, b.name, overlap(a, b)) for i, a in enumerate(sets) for b in sets[i + 1 :]]
    head = ["A", "B", "template", "|A|", "|B|", "|A ∩ B|", "% of A", "% of B"]
    weighed = any(one.same_sign is not None for *_, found in pairs for one in found)
    head += ["same sign", "correlation"] if weighed else []
    rows: list[list[Cell]] = []
    for a, b, found in pairs:
        for one in found:
            shares = [100 * one.both / n if n else None for n in (one.first, one.second)]
            row = [a, b, one.template, one.first, one.second, one.both, *shares]
            rows.append([*row, *((one.same_sign, one.correlation) if weighed else ())])
    return Found(Table(head, rows, left=3), lambda file, form: draw_overlaps(pairs, file, form))


class _Analysis(NamedTuple):
    """An analysis, and the options that it takes besides those that all take."""

    function: Callable[[DictConfig], Found]
    options: frozenset[str]


_COMMON: Final = {"analysis", "systems", "table", "output", "plot", "hydra"}
ANALYSES: Final = {
    "overlap": _Analysis(_overlap, frozenset({"data", "of", "n_best"})),
}


def analyse(cfg: DictConfig) -> None:
    """Print the table of an analysis, and draw its picture."""
    analysis = ANALYSES.get(cfg.analysis)
    if analysis is None:
        raise InputError(
            f"there is no analysis {cfg.analysis!r}; choose of {', '.join(ANALYSES)}"
            + did_you_mean(cfg.analysis, ANALYSES)
        )
    for override in HydraConfig.get().overrides.task:
        option = override_key(override).partition(".")[0]
        if option not in analysis.options | _COMMON:
            takers = [name for name, other in ANALYSES.items() if option in other.options]
            raise InputError(
                f"{override}: {cfg.analysis} takes no such option; it is one of {', '.join(takers)}"
            )
    form = "" if cfg.plot is None else Path(cfg.plot).suffix[1:]
    if cfg.plot is not None and form not in FORMS:
        raise InputError(f"plot must end with .png, .svg or .pdf, not {Path(cfg.plot).name}")
    found = analysis.function(cfg)
    table: str = getattr(found.table, cfg.table)()
    if cfg.output is None:
        print(table, end="")
    else:
        with atomic_writer(cfg.output) as file:
            file.write(table)
    if cfg.plot is not None:
        with atomic_path(Path(cfg.plot)) as beside, beside.open("wb") as picture:
            found.draw(picture, form)
        print(f"picture: {cfg.plot}", file=sys.stderr)


def main() -> int:
    """Analyse systems: the first argument names the analysis, others that are no options them."""
    try:
        overrides, flags = split_arguments(sys.argv[1:])
        paths, options = split_paths(overrides)
        if paths and value_of(options, "analysis") is None:
            options.append(f"analysis={quoted(paths.pop(0))}")
        if paths:
            options.append(systems_option(paths))
        return hydra_main("analyse")(analyse)(arguments=[*options, *flags])
    except (InputError, HydraException) as error:
        raise_if_stopped()
        print(f"error: {error}", file=sys.stderr)
        return 1
