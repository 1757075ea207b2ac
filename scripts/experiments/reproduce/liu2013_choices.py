"""Options of rows of Liu et al. (2013) that are chosen on devtest, or taken over from others."""

from __future__ import annotations

import math
from typing import Any

from alike import Key, shared
from liu2013_results import CSV, Result
from liu2013_rows import (
    ROWS,
    SENTENCES,
    Options,
    Row,
    corpus_overrides,
    defaults,
    most_iterations,
    part_of,
    place,
)
from published import read_results
from runs import SWEEP, Log, Run, drop_kept, lengthen, read_log, sweep
from tuned import Corpus

from torchtune_smt.core.errors import InputError


def sweeps(row: Row, seed: int, options: Options) -> bool:
    """Return whether a row chooses options itself."""
    return bool(row.swept and options.grids and seed == options.seeds[0])


def taken_over(key: str, name: str, seed: int, options: Options) -> str:
    """Return the values of options that a row has and does not choose, as `Result.chosen` does.

    They are what another row, or this one with the first seed, has chosen, here or in the table
    that --publish names, and without --sweep the default ones if it has not been done.

    Raises
    ------
    InputError
        With --sweep it has not been done.
    """
    found = chosen_before(key, name, seed, options)
    if found is not None:
        return found
    if options.grids:
        other = ROWS[key].like or key
        raise InputError(
            f"takes over what {other} chooses with seed {options.seeds[0]}, and that has not been "
            f"done there with these options: run --rows {other} too, or name a table that has it "
            "with --publish"
        )
    print(f"  {defaults(key)}, by default", flush=True)
    return defaults(key)


def chosen_before(key: str, name: str, seed: int, options: Options) -> str | None:
    """Return the values that `taken_over` does; None if they have not been chosen yet."""
    row, first = ROWS[key], options.seeds[0]
    other = row.like or key
    if not ROWS[other].swept:
        return ""
    if other == key and seed == first:
        return None
    part = part_of(name, ROWS[other], options)
    # What was chosen with other options for all rows says nothing here.
    alike = shared(corpus_overrides(name, options))
    like = Result.load(place(options.folder / name, other, first, part))
    if like is not None and shared(like.overrides) == alike:
        return like.chosen
    wanted = Key(other, part or SENTENCES[name] * ("train" in ROWS[other].tuning_set), first)
    for like in [] if options.publish is None else read_results(options.publish / CSV, Result):
        if like.corpus == name and Key.of(like) == wanted and shared(like.overrides) == alike:
            return like.chosen
    return None


def choose(
    row: Row, corpus: Corpus, run: Run, options: Options
) -> tuple[list[dict[str, Any]], str, Run, tuple[str, ...]] | None:
    """Choose what a row sweeps, an option after the other; None if all runs of one have failed.

    Returns
    -------
    points : list of dict
        See `Result`.
    chosen : str
        As `Result` has it.
    run : Run
        With what was chosen, which may be done, or begun: by the shorter run that chose it.
    resuming : tuple of str
        See `runs.complete`.

    Raises
    ------
    InputError
        Nothing could be chosen: with each value, the weights of a shorter run are those that it
        began with.
    """
    points: list[dict[str, Any]] = []
    chosen: tuple[str, ...] = ()
    begun = sweep_run(run, options)
    shorter = (options.sweep_iterations or math.inf) <= most_iterations(row, options)
    for option in row.swept:
        folder = begun.folder / option if chosen else begun.folder
        # What the last option is chosen from has all others as the row will.
        kept = shorter and option == row.swept[-1]
        tried_with = Run(folder, (*begun.overrides, *chosen))
        found = sweep(option, options.grids[option], tried_with, kept)
        if not found:
            return None
        logs = [read_log(one.folder) for one in found]
        if options.sweep_iterations is not None and all(log.best == 0 for log in logs):
            raise InputError(
                f"no value of {option} can be chosen from runs of {options.sweep_iterations} "
                "iterations: with each, the weights that tuning begins with stay the best; give "
                "more --sweep-iterations"
            )
        tried = [_point(corpus, one, log) for one, log in zip(found, logs, strict=True)]
        best = max(range(len(tried)), key=lambda i: tried[i]["devtest"])
        points += tried
        chosen = (*chosen, tried[best]["option"])
        last = found[best]
    if options.sweep_iterations is None:
        return points, " ".join(chosen), last, ()
    whole = Run(run.folder, (*run.overrides, *chosen))
    resuming = lengthen(whole, last)
    for one in found:
        drop_kept(one)
    return points, " ".join(chosen), whole, resuming


def sweep_run(run: Run, options: Options) -> Run:
    """Return the run that a row's option is chosen with: the row's own, or a shorter one."""
    if options.sweep_iterations is None:
        return run
    shorter = f"tuner.iterations={options.sweep_iterations}"
    overrides = tuple(shorter if o.startswith("tuner.iterations=") else o for o in run.overrides)
    return Run(run.folder / SWEEP, overrides)


def _point(corpus: Corpus, run: Run, log: Log) -> dict[str, Any]:
    """Return what came out of a value of a sweep."""
    return {
        "option": run.overrides[-1],
        "dev": log.dev,
        "devtest": corpus.score("devtest", run.overrides, run.folder),
        "active": log.active,
        "minutes": run.minutes,
        "cpu_minutes": run.cpu_minutes,
    }
