"""``compare`` and ``evaluate``: systems side by side, and how sure a difference is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import program_name, quoted, refuse_given, systems_option
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.systems import (
    compared,
    files_read,
    find_systems,
    run_on_systems,
    unused_grouping,
    write_table,
)
from torchtune_smt.core.errors import InputError, warn
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import check_written
from torchtune_smt.data.suspicions import output_suspicions
from torchtune_smt.evaluation.tables import STYLES, Results
from torchtune_smt.metrics.corpus import METRICS
from torchtune_smt.runs.folder import REPORT
from torchtune_smt.runs.outputs import Output


def compare(cfg: DictConfig, *, show: bool = True) -> None:
    """Print the scores and tests, unless not to `show` them, and write the report."""
    # A weighted sum has the names of its parts.
    given = ([one] if isinstance(one, str) else one or [""] for one in cfg.metrics or [""])
    for name in chain.from_iterable(given):
        if name not in METRICS:
            found = f"has {name!r}" if name else "is empty"
            raise InputError(f"metrics {found}; choose of {', '.join(METRICS)}")
    systems = find_systems(cfg.systems, group_seeds=cfg.group_seeds)
    refuse_given(_unused(cfg, systems), HydraConfig.get().overrides.task)
    baseline = _baseline(cfg.baseline, systems)
    on = compared(cfg, cfg.split)
    read: list[Path | str] = [*files_read(cfg.systems), *(on.references or ())]
    check_written({"output": cfg.output, "html": cfg.html}, read)
    every = [output for some in systems.values() for output in some]
    # A report shows the source, too.
    outputs = on.outputs(every, with_source=cfg.html is not None)
    for output, lines in outputs.translations.items():
        warn(
            output_suspicions(
                str(output.path),
                [split_words(line) for line in lines],
                [[split_words(reference) for reference in row] for row in outputs.references],
                case=not cfg.lowercase,
                tokens=cfg.tokenize == "none",
            )
        )
    results = Results.of(
        systems,
        outputs,
        [one if isinstance(one, str) else dict(one) for one in cfg.metrics],
        {"baseline": baseline, "test": cfg.test},
        {"samples": cfg.samples, "seed": cfg.seed},
        {"tokenize": cfg.tokenize, "lowercase": cfg.lowercase},
    )
    if show:
        write_table(cfg, lambda style: STYLES[style](results))
    if cfg.html is not None:
        # They take longer to import than a table to make.
        from torchtune_smt.cli.decoding import templates_of_others
        from torchtune_smt.evaluation.report import write_report

        write_report(
            Path(cfg.html),
            systems,
            outputs,
            results,
            baseline,
            open_run=partial(on.open_run, cfg.split),
            templates_of_others=templates_of_others,
            tokenize=cfg.tokenize,
            lowercase=cfg.lowercase,
        )
        print(f"report: {cfg.html}", file=sys.stderr)


def _unused(cfg: DictConfig, systems: Mapping[str, Sequence[Output]]) -> dict[str, str]:
    unused = unused_grouping(cfg.systems, systems)
    if len(systems) == 1:
        unused |= dict.fromkeys(("test", "baseline"), "there is one system, and nothing to test")
    runs = any(output.folder is not None for outputs in systems.values() for output in outputs)
    # A report shows the source, and runs translate the set, or have.
    if cfg.references is not None and cfg.html is None and not runs:
        unused |= dict.fromkeys(("split", "data"), "the references are those of references=")
    if cfg.html is None and not any("bleu" in name for name in cfg.metrics):
        unused["tokenize"] = "a tokenizer is BLEU's, which is none of the metrics"
    return unused


def main() -> int:
    """Compare systems; arguments that are no options are runs, sweeps, or files."""
    return run_on_systems("compare", compare)


def evaluate() -> int:
    """Do the same, with another table."""
    return run_on_systems("evaluate", compare)


def compare_runs(
    folder: Path, runs: Sequence[Path], *, table: bool, report: bool, flags: Sequence[str] = ()
) -> int:
    """Say how finished runs of a folder compare: BLEU of what all of them have translated.

    table: print the table.
    report: write ``report.html`` to the folder.
    flags: ``--config-dir=FOLDER``, where the configuration of the runs came from there, too.
    """
    splits = [
        split
        for split in ("test", "dev")
        if all((run / f"{split}.translations.txt").is_file() for run in runs)
    ]
    if not runs or not splits:
        return 0

    # The split that it takes by itself need not be said.
    more = [str(folder), *(["split=dev"] if splits[0] == "dev" else []), *flags]
    command = f"{program_name()} compare {shlex.join(more)}"

    def run(cfg: DictConfig) -> None:
        try:
            compared(cfg, splits[0]).check_words(runs)
            if table:
                print(f"\n{splits[0]} ({command} tells more)\n", flush=True)
            compare(cfg, show=table)
        except InputError as error:
            if report:
                # It was asked for.
                raise InputError(f"there is no report of {folder}: {error}") from None
            print(f"\nthere is no table of {folder}: {error}")

    options = [systems_option([str(run) for run in runs]), f"split={splits[0]}", "metrics=[bleu]"]
    if report:
        options.append(f"html={quoted(str(folder / REPORT))}")
    return hydra_main("compare")(run)(arguments=[*options, *flags])


def _baseline(given: str | None, systems: Mapping[str, Sequence[Output]]) -> str:
    """Return the name of the baseline, which may be given by a path, too."""
    for name, outputs in systems.items():
        if given in (None, name) or Path(str(given)) in [output.path for output in outputs]:
            return name
    raise InputError(f"baseline={given} is none of the systems; they are {', '.join(systems)}")
