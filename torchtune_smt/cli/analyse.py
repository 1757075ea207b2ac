"""``analyse``: what features do in systems, and where two systems differ."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key, quoted, refuse_given, value_of
from torchtune_smt.cli.systems import (
    compared,
    files_read,
    find_systems,
    paths_of,
    run_on_systems,
    unused_grouping,
    write_table,
)
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.pictures import FORMS, write_picture
from torchtune_smt.core.textio import check_written
from torchtune_smt.evaluation.analyses import ANALYSES, Analysis
from torchtune_smt.runs.folder import METRICS
from torchtune_smt.runs.outputs import Output

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
    if cfg.plot is not None and Path(cfg.plot).suffix[1:] not in FORMS:
        raise InputError(f"plot must end with .png, .svg or .pdf, not {Path(cfg.plot).name}")
    references = cfg.get("references")
    given = [] if references is None else paths_of("references", references)
    check_written({"output": cfg.output, "plot": cfg.plot}, [*files_read(cfg.systems), *given])
    own = {name: cfg.get(name) for name in options[cfg.analysis]}
    analysis = Analysis(
        cfg.analysis,
        partial(_found, cfg),
        lambda split, takes: compared(cfg, split, takes_references=takes),
        _templates_of_others,
        whole_names=cfg.table == "csv",
    )
    found = ANALYSES[cfg.analysis](analysis, **own)
    table = found.table._replace(notes=[*found.key, *found.table.notes]).shortened(own.get("rows"))
    forms = {"markdown": table.markdown, "latex": table.latex, "csv": table.csv}
    write_table(cfg, lambda style: forms.get(style, table.text)())
    if cfg.plot is not None:
        write_picture(Path(cfg.plot), found.draw, "\n".join(found.key))
        print(f"picture: {cfg.plot}", file=sys.stderr)


def _found(cfg: DictConfig, **options: Any) -> dict[str, list[Output]]:
    systems = find_systems(cfg.systems, **options)
    if options.get("marker") == METRICS:
        refuse_given(unused_grouping(cfg.systems, systems), HydraConfig.get().overrides.task)
    return systems


def _templates_of_others(paths: Sequence[Path]) -> list[list[Any]] | None:
    # Only this needs a decoder.
    from torchtune_smt.cli.decoding import other_model, templates_of_others

    return templates_of_others(paths) if other_model(paths) is None else None


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
