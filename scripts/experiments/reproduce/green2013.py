"""The experiments of Green et al. (2013).

    python scripts/experiments/reproduce/green2013.py [--small]

Tunes each row with a run of train.py, tries the weights on devtest and test, and writes tables:
own.md and own.csv, of systems with phrase tables that this project builds, and table.md and
table.csv, of systems with those that Moses had (green2013_moses.py). Rows that are finished are not
run again, and one that was stopped is taken up where it was: the same command goes on. Rows that
have not been run are listed as missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import forecast
import green2013_moses
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
from green2013_results import CSV, Result, compare_rows, mean, write_tables
from green2013_rows import (
    CALLHOME,
    ON_DEV,
    ROWS,
    SETS,
    SIZES,
    Options,
    corpus_overrides,
    place,
    row_overrides,
    rows_of,
    runs_of,
    small_dev,
    write_callhome,
)
from measured import measured
from runs import LOG, REPOSITORY, Run, complete, said_path
from tuned import Corpus

from torchtune_smt.runs.curves import read_metrics, round_seconds

SCRIPT: Final = "scripts/experiments/reproduce/green2013.py"

KINDS: Final = ("own", "moses")
SMALL: Final = ("decoder.pop_limit=20", "decoder.stack_size=20", "decoder.k=20")
MEASURED: Final = REPOSITORY / "docs" / "results" / "green2013" / CSV


def do_row(row: str, corpus: Corpus, name: str, seed: int, options: Options) -> Result | None:
    """Tune a row, or what is left of it, and try its weights; None if tuning failed."""
    one, _, key = row.partition("/")
    folder = place(options, name, row, seed)
    run = Run(folder, row_overrides(name, row, seed, small_dev(name, options), options))
    if not complete(run):
        return None
    before = Result.load(folder)
    if before is not None and before.overrides == list(run.overrides):
        return before
    on_dev = one in ON_DEV
    metrics = read_metrics(folder)
    result = measured(
        Result,
        run,
        corpus,
        folder,
        row=row,
        corpus=name,
        method=ROWS[key].method,
        tuning_set=f"{one} ({SIZES[name][one]:,})" if on_dev else "train",
        features=ROWS[key].features,
        language_models="" if on_dev else "folds",
        training_sentences=0 if on_dev else SIZES[name][one],
        seconds=round_seconds(metrics).tolist(),
        dev_by_epoch=metrics["bleu/dev"].values,
        seed=seed,
        command=options.command,
    )
    result.save(folder)
    return result


def forecasts(
    keys: Sequence[str], names: Sequence[str], sets: Sequence[str], path: Path, options: Options
) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes, judged by a table of rows that were done.

    A row that was not run on a set is judged by the set of the nearest size, and one that was never
    run by rows of the same kind.
    """
    known = forecast.read_measured(path)
    for name in names:
        for row, seed in runs_of(name, keys, sets, options):
            one, _, key = row.partition("/")
            alike = [key, *(k for k in ROWS if ROWS[k].online == ROWS[key].online)]
            others = sorted(SIZES[name], key=lambda s: abs(SIZES[name][s] - SIZES[name][one]))
            minutes = next(
                (
                    known[name, f"{s}/{k}"].cpu_minutes * SIZES[name][one] / SIZES[name][s]
                    for k in alike
                    for s in others
                    if (name, f"{s}/{k}") in known
                ),
                None,
            )
            rounds = options.epochs or (8 if ROWS[key].online else 15)
            hours = None if minutes is None else minutes * rounds / 60
            done = Result.load(place(options, name, row, seed)) is not None
            yield f"{name}/{row}, seed {seed}", done, hours


def do_own(given: argparse.Namespace, options: Options) -> list[str]:
    """Do rows of systems with own tables; return which have failed."""
    keys = given.rows or list(ROWS)
    failed = []
    for name in chosen_corpora(given):
        runs = runs_of(name, keys, given.sets, options)
        if not runs:
            continue
        if name == CALLHOME:
            write_callhome(options)
        base = (*corpus_overrides(name, options), "decoder=phrase")
        corpus = Corpus(base, stand_ins(given), reuse_k=1)
        for row, seed in runs:
            print(f"{name}: {row}, seed {seed}", flush=True)
            result = do_row(row, corpus, name, seed, options)
            if result is None:
                failed.append(f"{name}/{row}, seed {seed}")
                print(f"  failed; see {place(options, name, row, seed) / LOG}", flush=True)
                continue
            compare_rows(corpus, name, options)
            write_tables(options, options.folder)
            print(
                f"  dev {result.dev:.2f}, devtest {result.devtest:.2f}, test {result.test:.2f}, "
                f"{result.active:,} active, {mean(result.seconds):.1f} s an epoch, "
                f"{result.cpu_minutes:.1f} CPU minutes",
                flush=True,
            )
    return failed


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    shared = REPOSITORY.parent / "shared"
    parser = argparse.ArgumentParser(
        description="Runs the experiments of Green et al. (2013), and writes the tables. Rows that "
        "are finished are not run again; the same command goes on after an interruption."
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        help="of systems with tables that are built here, or with those that Moses had",
    )
    add_corpora(parser, CALLHOME)
    rows = dict.fromkeys([*ROWS, *green2013_moses.ROWS])
    add_rows(parser, list(rows))
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET", help="tuned on"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="SEED", help="(default: 1 2 3 on dev, elsewhere 1)"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="T",
        help="or iterations of batch tuners (default: the tuner's; with --small: 2)",
    )
    parser.add_argument("--moses", type=Path, default=shared / "oracles" / "moses")
    model = shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz"
    parser.add_argument("--language-model", type=Path, default=model, help="of Moses's")
    data = shared / "data" / "multi30k-de-en"
    parser.add_argument("--data", type=Path, default=data, help="translated with Moses's tables")
    parser.add_argument(
        "--measured", type=Path, default=MEASURED, metavar="CSV", help="what --forecast judges by"
    )
    add_common(parser, "green2013")
    given = parser.parse_args(arguments)
    if given.small and (given.corpora or "moses" in given.tables):
        parser.error("--small has a corpus of its own: give --tables own, and leave --corpora out")
    check_counts(parser, given, "epochs")
    check_seeds(parser, given.seeds or ())
    if not given.measured.is_file():
        parser.error(f"--measured: there is no file {given.measured}")
    own = [rows_of(name, given.rows or list(ROWS), given.sets) for name in chosen_corpora(given)]
    moses = [key for key in given.rows or green2013_moses.ROWS if key in green2013_moses.ROWS]
    if not ("own" in given.tables and any(own)) and not ("moses" in given.tables and moses):
        parser.error("none of these --rows is in these --tables, with these --corpora and --sets")
    return given


def as_options(given: argparse.Namespace) -> Options:
    """Return the options of all rows with own tables."""
    defaults: dict[str, Any] = {"tables": list(KINDS), "small": False, "corpora": None}
    defaults |= {"sets": list(SETS), "seeds": None, "epochs": None, "set": []}
    return Options(
        folder=given.folder.resolve(),
        command=" ".join([f"python {SCRIPT}", *said(given, defaults)]),
        epochs=given.epochs or (2 if given.small else None),
        seeds=tuple(given.seeds or ()),
        extra=(*(SMALL if given.small else ()), *given.set),
    )


def as_moses_options(given: argparse.Namespace) -> green2013_moses.Options:
    """Return the options of all rows with Moses's tables."""
    return green2013_moses.Options(
        given.folder.resolve(),
        given.moses.resolve(),
        given.language_model.resolve(),
        given.data.resolve(),
        tuple(given.set),
    )


def do_all(given: argparse.Namespace) -> list[str]:
    """Do rows and write the tables; return which have failed."""
    options, moses = as_options(given), as_moses_options(given)
    publish = None if given.publish is None else given.publish.resolve()
    measured_rows = given.measured.resolve()
    # Paths below the repository are given to runs as seen from there.
    os.chdir(REPOSITORY)
    seeds = options.seeds_of("dev")
    moses_keys = [key for key in given.rows or green2013_moses.ROWS if key in green2013_moses.ROWS]
    if given.forecast:
        if "own" in given.tables:
            keys = given.rows or list(ROWS)
            rows = forecasts(keys, chosen_corpora(given), given.sets, measured_rows, options)
            forecast.print_hours(rows, said_path(measured_rows))
        if "moses" in given.tables:
            rows = green2013_moses.forecasts(moses_keys, seeds, moses)
            forecast.print_hours(rows, said_path(green2013_moses.MEASURED))
        return []
    failed = []
    if "own" in given.tables:
        failed += do_own(given, options)
        if publish is not None:
            write_tables(options, publish)
    if "moses" in given.tables:
        failed += green2013_moses.do_runs(moses_keys, seeds, moses)
        if publish is not None:
            found = green2013_moses.results(moses)
            if lost := green2013_moses.lost(found, publish):
                print(
                    f"{publish / 'table.md'} stays, as these rows are not here: {'; '.join(lost)}"
                )
            else:
                green2013_moses.write(found, publish, moses)
    return failed


def main() -> int:
    given = parse(sys.argv[1:])
    return ended(lambda: do_all(given))


if __name__ == "__main__":
    sys.exit(main())
