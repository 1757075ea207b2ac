"""The table of Simianer et al. (2012).

    python scripts/experiments/reproduce/simianer2012.py [--small]

Tunes each row with a run of train.py, tries the weights on devtest, on test and out of the domain,
and writes table.md and table.csv. One domain of the corpus is kept apart for that: domains.py has
made them, and its files say which lines they are. Rows that are finished are not run again, and one
that was stopped is taken up where it was: the same command goes on. Rows that were not run are
listed as missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import domains
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
from domains import OUT
from measured import measured, training_sentences
from runs import LOG, REPOSITORY, Run, complete
from simianer2012_results import CSV, Result, compare_rows, write_tables
from simianer2012_rows import (
    EPOCHS,
    ROWS,
    Options,
    corpus_overrides,
    data_folder,
    epochs,
    place,
    row_overrides,
    with_starts,
)
from tuned import Corpus

SCRIPT: Final = "scripts/experiments/reproduce/simianer2012.py"

SMALL: Final = ("decoder.pop_limit=20", "decoder.k=50", "parallel.shards=2")
SMALL_SENTENCES: Final = 60
MEASURED: Final = REPOSITORY / "docs" / "results" / "simianer2012" / CSV


def do_row(key: str, corpus: Corpus, name: str, seed: int, options: Options) -> Result | None:
    """Tune a row, or what is left of it, and try its weights; None if tuning failed."""
    row, folder = ROWS[key], place(options.folder, name, key, seed)
    run = Run(folder, row_overrides(name, row, seed, options))
    if not complete(run):
        return None
    before = Result.load(folder)
    if before is not None and before.overrides == list(run.overrides):
        return before
    result = measured(
        Result,
        run,
        corpus,
        folder,
        row=key,
        corpus=name,
        method=row.algorithm,
        tuning_set=row.tuning_set,
        features=row.features,
        language_models="folds" if row.on_train else "",
        training_sentences=training_sentences(row.tuning_set, options.train_sentences, corpus),
        out=corpus.score(OUT, run.overrides, folder),
        seed=seed,
        command=options.command,
    )
    result.save(folder)
    return result


def _training_sentences(name: str) -> int:
    split = domains.read_split(domains.FOLDER / f"{name}.txt")
    return sum(lines.size for lines in split["train"][:-1])


def forecasts(
    keys: Sequence[str], names: Sequence[str], options: Options
) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes."""
    measured = forecast.read_measured(MEASURED) if MEASURED.is_file() else {}
    for name in names:
        for key in keys:
            # Other rows on the same set, and with more features, decode as much.
            known = [key, *(k for k in ROWS if ROWS[k].on_train == ROWS[key].on_train)]
            like = next((k for k in known if (name, k) in measured), key)
            sentences = options.train_sentences or _training_sentences(name)
            hours = forecast.hours(measured, name, like, sentences, epochs(ROWS[key], options))
            for seed in options.seeds:
                done = Result.load(place(options.folder, name, key, seed)) is not None
                yield f"{name}/{key}, seed {seed}", done, hours


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description="Runs the rows of the table of Simianer et al. (2012) on News Commentary with "
        "other data, and writes the table. Rows that are finished are not run again; the same "
        "command goes on after an interruption."
    )
    add_corpora(parser)
    add_rows(parser, list(ROWS), ", and those whose weights they start from")
    parser.add_argument(
        "--train-sentences",
        type=int,
        metavar="N",
        help="tune on a sample of the training data (default: all; with --small: "
        f"{SMALL_SENTENCES})",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="T",
        help=f"(default: {EPOCHS['dev']} on dev, {EPOCHS['train']} on training data; with --small: "
        "2)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--workers", type=int, default=1, help="cores a run (default: 1)")
    add_common(parser, "simianer2012", "; those of `parallel` for rows with shards")
    given = parser.parse_args(arguments)
    if given.small and given.corpora:
        parser.error("--small has a corpus of its own: leave --corpora out")
    check_counts(parser, given, "train_sentences", "epochs", "workers")
    check_seeds(parser, given.seeds)
    return given


def as_command(given: argparse.Namespace) -> str:
    """Return the command that repeats the results, wherever they are written."""
    optional = dict.fromkeys(["corpora", "train_sentences", "epochs"])
    defaults = {"small": False, **optional, "seeds": [1], "workers": 1, "set": []}
    return " ".join([f"python {SCRIPT}", *said(given, defaults)])


def as_options(given: argparse.Namespace) -> Options:
    """Return the options of all rows."""
    return Options(
        folder=given.folder.resolve(),
        command=as_command(given),
        train_sentences=given.train_sentences or (SMALL_SENTENCES if given.small else 0),
        epochs=given.epochs or (2 if given.small else 0),
        seeds=tuple(given.seeds),
        workers=given.workers,
        extra=(*(SMALL if given.small else ()), *given.set),
    )


def do_rows(given: argparse.Namespace) -> list[str]:
    """Do rows and write the tables; return which have failed."""
    options = as_options(given)
    publish = None if given.publish is None else given.publish.resolve()
    # Paths below the repository are given to runs as seen from there.
    os.chdir(REPOSITORY)
    keys = with_starts(given.rows or list(ROWS))
    names = chosen_corpora(given)
    if given.forecast:
        rows = forecasts(keys, names, options)
        forecast.print_hours(rows, MEASURED.relative_to(REPOSITORY))
        return []
    failed = []
    for name in names:
        domains.write_data(name, data_folder(options.folder, name))
        corpus = Corpus(corpus_overrides(name, options), stand_ins(given) | {OUT: OUT})
        for key, seed in ((key, seed) for key in keys for seed in options.seeds):
            print(f"{name}: {key}, seed {seed}", flush=True)
            result = do_row(key, corpus, name, seed, options)
            if result is None:
                failed.append(f"{name}/{key}, seed {seed}")
                log = place(options.folder, name, key, seed) / LOG
                print(f"  failed; see {log}", flush=True)
                continue
            compare_rows(corpus, options.folder, name)
            write_tables(options.folder, options.folder)
            print(
                f"  devtest {result.devtest:.2f}, test {result.test:.2f}, out {result.out:.2f}, "
                f"{result.active:,} active, {result.minutes:.1f} minutes",
                flush=True,
            )
    if publish is not None:
        write_tables(options.folder, publish)
    print(options.folder / "table.md")
    return failed


def main() -> int:
    given = parse(sys.argv[1:])
    return ended(lambda: do_rows(given))


if __name__ == "__main__":
    sys.exit(main())
