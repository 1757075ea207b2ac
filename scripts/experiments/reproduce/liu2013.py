"""Table 1 of Liu et al. (2013): python scripts/experiments/reproduce/liu2013.py [--small].

Tunes each row with a run of train.py, tries the weights on devtest and test, and writes table.md,
table.csv and bleu-by-features.png; chance-in-groups.png, too, where groups come from Algorithm 2.
Rows that are finished are not run again, and one that was stopped is taken up where it was: the
same command goes on. Two commands with different --corpora may share a --folder and run side by
side. Rows of a part of the training data have folders that say so (oscar-5000), so that a --folder
may have them beside those of all of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import forecast
from command_line import (
    add_common,
    add_corpora,
    add_rows,
    check_counts,
    check_seeds,
    chosen_corpora,
    ended,
    said,
    stand_ins,
)
from diagnosis import read_diagnosis
from liu2013_choices import choose, sweeps, taken_over
from liu2013_forecast import MEASURED, forecasts
from liu2013_results import Result, compare_rows, write_tables
from liu2013_rows import (
    BASELINE,
    FRACTION,
    GRIDS,
    LAMBDA2,
    RATE,
    ROWS,
    STRENGTH,
    Options,
    corpus_overrides,
    in_turn,
    part_of,
    place,
    row_overrides,
)
from measured import measured, training_sentences
from runs import LOG, REPOSITORY, Run, complete, retarget
from tuned import DEVTEST, Corpus

from torchtune_smt.core.errors import InputError

# A row that tunes on training data then takes less than two hours on one core.
TRAIN_SENTENCES: Final = 2000
SMALL_SENTENCES: Final = 200
SMALL: Final = ("decoder.pop_limit=20", "decoder.k=50")


def do_row(key: str, corpus: Corpus, name: str, seed: int, options: Options) -> Result | None:
    """Tune a row, or what is left of it, and try its weights; None if tuning failed.

    Raises
    ------
    InputError
        Its folder has a run with other options, or what it takes over is not there.
    """
    row = ROWS[key]
    part = part_of(name, row, options)
    folder = place(options.folder / name, key, seed, part)
    before = Result.load(folder)
    run = Run(folder, row_overrides(name, row, seed, options))
    points: list[dict[str, Any]] = []
    resuming: tuple[str, ...] = ()
    if sweeps(row, seed, options):
        found = choose(row, corpus, run, options)
        if found is None:
            return None
        points, chosen, run, resuming = found
    else:
        chosen = taken_over(key, name, seed, options)
        run = Run(folder, (*run.overrides, *chosen.split()))
    # Where --iterations is another one now.
    iterations = retarget(run)
    if not complete(run, resuming or iterations):
        return None
    if before is not None and before.overrides == list(run.overrides) and before.points == points:
        return before
    result = measured(
        Result,
        run,
        corpus,
        folder,
        row=key,
        corpus=name,
        method=row.method,
        tuning_set=row.tuning_set,
        features=row.features,
        language_models=row.language_models,
        training_sentences=training_sentences(row.tuning_set, part, corpus),
        seed=seed,
        chosen=chosen,
        points=points,
        command=options.command,
        diagnosis=read_diagnosis(run.folder),
    )
    if run.folder != folder:
        shutil.copyfile(run.folder / DEVTEST, folder / DEVTEST)
    result.save(folder)
    return result


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description="Runs the rows of Table 1 of Liu et al. (2013), and writes the table. Rows "
        "that are finished are not run again; the same command goes on after an interruption."
    )
    add_corpora(parser)
    add_rows(parser, list(ROWS))
    parser.add_argument(
        "--train-sentences",
        type=int,
        metavar="N",
        help="tune on a sample of the training data; 0: all (default: "
        f"{TRAIN_SENTENCES:,}; with --small: {SMALL_SENTENCES})",
    )
    parser.add_argument(
        "--iterations", type=int, metavar="T", help="at most (default: 15; with --small: 3)"
    )
    parser.add_argument(
        "--dev-only-iterations",
        type=int,
        metavar="T",
        help="of rows that tune on dev alone (default: as --iterations)",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="choose the strengths of L1 and OSCAR on devtest, as the paper did",
    )
    parser.add_argument(
        "--sweep-iterations",
        type=int,
        metavar="T",
        help="choose them from runs of so many iterations, each, and go on with the chosen one",
    )
    for name, what in {
        "strengths": "of L1",
        "rates": "step sizes of L1",
        "lambda2s": "of OSCAR",
        "fractions": "of λ_max, for groups of the minimum",
    }.items():
        default = " ".join(f"{value:g}" for value in GRIDS[name])
        parser.add_argument(
            f"--{name}",
            type=float,
            nargs="+",
            metavar="VALUE",
            help=f"{what}, that --sweep tries (default: {default})",
        )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1],
        metavar="SEED",
        help="options are chosen with the first one (default: 1)",
    )
    parser.add_argument("--threads", type=int, default=1, help="cores a run (default: 1)")
    add_common(parser, "liu2013")
    options = parser.parse_args(arguments)
    if options.small and options.corpora:
        parser.error("--small has a corpus of its own: leave --corpora out")
    if options.sweep_iterations is not None and not options.sweep:
        parser.error("--sweep-iterations needs --sweep")
    if options.train_sentences is not None and options.train_sentences < 0:
        parser.error("--train-sentences must be 0 or more")
    check_counts(
        parser, options, "iterations", "dev_only_iterations", "sweep_iterations", "threads"
    )
    check_seeds(parser, options.seeds)
    for name, values in GRIDS.items():
        if getattr(options, name) is None:
            setattr(options, name, list(values))
        elif not options.sweep:
            parser.error(f"--{name} needs --sweep")
    return options


def as_command(given: argparse.Namespace) -> str:
    """Return the command that repeats the results, wherever they are written."""
    words = ["python scripts/experiments/reproduce/liu2013.py"]
    words += said(given, {"small": False, **dict.fromkeys(["corpora", "train_sentences"])})
    words += said(given, {"iterations": None, "dev_only_iterations": None})
    if given.sweep:
        # Also where they are the default ones.
        grids = dict.fromkeys(GRIDS)
        words += said(given, {"sweep": False, "sweep_iterations": None, **grids})
    return " ".join([*words, *said(given, {"seeds": [1], "threads": 1, "set": []})])


def as_options(given: argparse.Namespace) -> Options:
    """Return the options of all rows."""
    sentences, iterations = given.train_sentences, given.iterations
    if sentences is None:
        sentences = SMALL_SENTENCES if given.small else TRAIN_SENTENCES
    if iterations is None:
        iterations = 3 if given.small else 15
    dev_only = given.dev_only_iterations
    grids = {STRENGTH: given.strengths, RATE: given.rates}
    grids |= {LAMBDA2: given.lambda2s, FRACTION: given.fractions}
    return Options(
        folder=given.folder.resolve(),
        publish=None if given.publish is None else given.publish.resolve(),
        command=as_command(given),
        train_sentences=sentences,
        iterations=iterations,
        dev_only_iterations=iterations if dev_only is None else dev_only,
        seeds=tuple(given.seeds),
        threads=given.threads,
        grids=grids if given.sweep else {},
        sweep_iterations=given.sweep_iterations,
        extra=(*(SMALL if given.small else ()), *given.set),
    )


def do_rows(given: argparse.Namespace) -> list[str]:
    """Do rows and write the tables; return which have failed."""
    options = as_options(given)
    # Models of the repository are found, and built, there.
    os.chdir(REPOSITORY)
    keys = in_turn(given.rows or sorted(ROWS, key=lambda key: key != BASELINE))
    names = chosen_corpora(given)
    if given.forecast:
        rows = forecasts(keys, names, options)
        forecast.print_hours(rows, MEASURED.relative_to(REPOSITORY))
        return []
    failed = []
    for name in names:
        corpus = Corpus(corpus_overrides(name, options), stand_ins(given))
        # Seed by seed, so that rows can be compared before all seeds are done.
        for seed, key in product(options.seeds, keys):
            print(f"{name}: {key}, seed {seed}", flush=True)
            part = part_of(name, ROWS[key], options)
            why = f"see {place(options.folder / name, key, seed, part) / LOG}"
            try:
                result = do_row(key, corpus, name, seed, options)
            except InputError as error:
                result, why = None, str(error)
            if result is None:
                failed.append(f"{name}/{key}, seed {seed}")
                print(f"  failed; {why}", flush=True)
                continue
            compare_rows(corpus, options.folder / name)
            write_tables(options.folder, options.folder)
            print(
                f"  devtest {result.devtest:.2f}, test {result.test:.2f}, {result.active:,} "
                f"active, {result.reused:,} reused, {result.minutes:.1f} minutes",
                flush=True,
            )
    if options.publish is not None:
        write_tables(options.folder, options.publish)
    print(options.folder / "table.md")
    return failed


def main() -> int:
    given = parse(sys.argv[1:])
    return ended(lambda: do_rows(given))


if __name__ == "__main__":
    sys.exit(main())
