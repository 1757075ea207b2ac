"""``analyse``: what features do in systems, and where two systems differ."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from torchtune_smt.cli import analyses
from torchtune_smt.cli.analyses import Found
from torchtune_smt.cli.command_line import (
    override_key,
    quoted,
    split_arguments,
    split_paths,
    systems_option,
    value_of,
)
from torchtune_smt.cli.compare import on_screen
from torchtune_smt.cli.hydra_main import error_line, hydra_main
from torchtune_smt.cli.stopping import raise_if_stopped
from torchtune_smt.cli.systems import files_read, reference_paths
from torchtune_smt.cli.written_files import check_written
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.pictures import FORMS
from torchtune_smt.core.textio import atomic_path, atomic_writer


class _Analysis(NamedTuple):
    """An analysis, and the options that it takes besides those that all take."""

    function: Callable[[DictConfig], Found]
    options: frozenset[str]


_COMMON: Final = {"analysis", "systems", "table", "output", "plot", "hydra"}
ANALYSES: Final = {
    "overlap": _Analysis(analyses.overlap, frozenset({"data", "of", "n_best"})),
    "adaptation": _Analysis(analyses.adaptation, frozenset({"rivals", "match", "rows"})),
    "spellings": _Analysis(analyses.spellings, frozenset({"words", "match"})),
    "reordering": _Analysis(
        analyses.reordering, frozenset({"data", "split", "references", "match", "rows"})
    ),
    "progress": _Analysis(analyses.progress, frozenset({"group_seeds"})),
    "explain": _Analysis(analyses.explain, frozenset({"data", "split", "sentence", "rows"})),
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
            of = f"it is one of {', '.join(takers)}" if takers else "no analysis does"
            raise InputError(f"{override}: {cfg.analysis} takes no such option; {of}")
    form = "" if cfg.plot is None else Path(cfg.plot).suffix[1:]
    if cfg.plot is not None and form not in FORMS:
        raise InputError(f"plot must end with .png, .svg or .pdf, not {Path(cfg.plot).name}")
    references = cfg.get("references")
    given = [] if references is None else reference_paths(references)
    check_written(
        {"output": cfg.output, "plot": cfg.plot}, [*files_read(cfg.systems), *map(Path, given)]
    )
    found = analysis.function(cfg)
    table: str = getattr(found.table, "text" if on_screen(cfg) else cfg.table or "markdown")()
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
        if not flags and not any(override_key(option) == "analysis" for option in options):
            raise InputError(f"name an analysis; choose of {', '.join(ANALYSES)}")
        if paths:
            options.append(systems_option(paths))
        return hydra_main("analyse")(analyse)(arguments=[*options, *flags])
    except (InputError, HydraException) as error:
        raise_if_stopped()
        print(error_line(error), file=sys.stderr)
        return 1
