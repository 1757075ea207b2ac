"""How long rows of Liu et al. (2013) that are not done may take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import forecast
from liu2013_choices import chosen_before, sweeps
from liu2013_results import CSV, Result
from liu2013_rows import (
    BASELINE,
    ROWS,
    SENTENCES,
    Options,
    defaults,
    most_iterations,
    part_of,
    place,
    row_overrides,
)
from runs import REPOSITORY

# Of PRO on dev in each iteration of tuner=grouping, by default.
DEV_ITERATIONS: Final = 10
# What rows took that were done before.
MEASURED: Final = REPOSITORY / "docs" / "results" / "liu2013" / CSV


def dev_iterations(overrides: Sequence[str]) -> int:
    """Return how many iterations on dev one of a row on training data has, at most.

    Where none are for tuning, it is translated once.
    """
    if "tuner=grouping" not in overrides:
        return int("tuner.tune_on=train" in overrides)
    given = [o.partition("=")[2] for o in overrides if o.startswith("tuner.dev.iterations=")]
    return int(given[-1]) if given else DEV_ITERATIONS


def is_done(key: str, name: str, seed: int, options: Options) -> bool:
    """Return whether there is a result of what would be run now, for a row."""
    row = ROWS[key]
    folder = place(options.folder / name, key, seed, part_of(name, row, options))
    result = Result.load(folder)
    if result is None:
        return False
    if sweeps(row, seed, options):
        chosen: str | None = result.chosen
        values = [(option, value) for option in row.swept for value in options.grids[option]]
        if [point["option"] for point in result.points] != [f"{o}={float(v)}" for o, v in values]:
            return False
    else:
        chosen = chosen_before(key, name, seed, options)
        if chosen is None and not options.grids:
            chosen = defaults(key)
    overrides = row_overrides(name, row, seed, options)
    return chosen is not None and result.overrides == [*overrides, *chosen.split()]


def forecasts(
    keys: Sequence[str], names: Sequence[str], options: Options
) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes."""
    measured = forecast.read_measured(MEASURED)
    for name in names:
        for key in keys:
            row = ROWS[key]
            # Other rows that were never measured learn groups, as OSCAR's do.
            like = (key, key.removesuffix("_full"), "oscar")
            known = next((k for k in like if (name, k) in measured), "oscar")
            sentences = options.train_sentences or SENTENCES.get(name, 0)
            dev = 0.0, 0.0
            if (name, known) in measured and (name, BASELINE) in measured:
                once = measured[name, BASELINE].cpu_minutes
                dev = (
                    once * dev_iterations(measured[name, known].overrides),
                    once * dev_iterations(row.overrides),
                )
            values = sum(len(options.grids.get(option, ())) for option in row.swept)
            for seed in options.seeds:
                # Values are tried with the first seed alone.
                tried = values if seed == options.seeds[0] else 0
                iterations = most_iterations(row, options)
                iterations *= not tried or options.sweep_iterations is not None
                iterations += tried * (options.sweep_iterations or most_iterations(row, options))
                hours = forecast.hours(measured, name, known, sentences, iterations, dev)
                done = is_done(key, name, seed, options)
                yield f"{name}/{key}" + (f", seed {seed}" if seed != 1 else ""), done, hours
