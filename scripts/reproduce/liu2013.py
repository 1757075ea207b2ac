"""Table 1 of Liu et al. (2013): python scripts/reproduce/liu2013.py [--small].

Tunes each row with a run of train.py, tries the weights on devtest and test, and writes table.md,
table.csv and bleu-by-features.png. Rows that are finished are not run again, and one that was
stopped is taken up where it was: the same command goes on. Two commands with different --corpora
may share a --folder and run side by side.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import forecast
import tables
from command_line import (
    CORPORA,
    add_common,
    add_corpora,
    add_rows,
    chosen_corpora,
    ended,
    said,
    stand_ins,
)
from measured import measured, training_sentences
from runs import LOG, REPOSITORY, SWEEP, Run, complete, read_log, sweep
from tables import Published, Result, Section
from tuned import DEVTEST, SIGNIFICANCE, TEST, Corpus

from torchtune_smt.core.textio import atomic_writer

BASELINE: Final = "pro_dev"
# A row that tunes on training data then takes less than two hours on one core.
TRAIN_SENTENCES: Final = 2000
SMALL_SENTENCES: Final = 200
SMALL: Final = ("decoder.pop_limit=20", "decoder.k=50")
NOT_AGAIN: Final = "not computed again"
TITLE: Final = "Liu et al. (2013), Table 1"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). p: of the difference from "
    "PRO on dev with default features, by approximate randomisation (10,000 trials); bold below "
    f"0.05; `{NOT_AGAIN}`: the translations are not there any more. "
    "Active: weights that are not 0, dense ones among them; for OSCAR groups with such a weight. "
    "Reused: those of them that fire in the 1000 best translations of a sentence of test. "
    "Iterations: the one with the best BLEU on dev, whose weights were kept, and all. "
    "Minutes: of tuning, in wall-clock time, and on a processor: one thread unless the command has "
    "`--threads`.",
    "Training data is decoded with leave-one-out grammars and, as `language models` says, with "
    "those of the other folds (`folds`) or with the one that has seen it (`full`, as in the "
    "paper). Where not all of it was tuned on, the sample is drawn with the seed.",
)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    method, tuning_set, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    language_models : str
        Those that training data is decoded with: ``folds``, ``full``, or none.
    swept : str
        The option that is chosen on devtest with --sweep.
    like : str
        The row whose choice is taken over.
    published : Published, optional
        The paper's figures.
    """

    method: str
    tuning_set: str
    features: str
    overrides: tuple[str, ...]
    language_models: str = ""
    swept: str = ""
    like: str = ""
    published: Published | None = None


PRO: Final = ("tuner=pro",)
L1: Final = (
    "tuner=stochastic",
    "loss=hinge",
    "loss.reduction=each",
    "regularizer=l1",
    "optimizer=cumulative_l1",
)
GROUPING: Final = ("tuner=grouping",)
OSCAR: Final = (*GROUPING, "regularizer=oscar", "regularizer.dimension=charts")
DENSE: Final = ("features=dense",)
RULE_ID: Final = ("features=rule_id",)
ON_TRAIN: Final = ("tuner.tune_on=train",)
STRENGTH: Final = "regularizer.strength"
LAMBDA2: Final = "regularizer.lambda2"
FRACTION: Final = "regularizer.fraction"
# Where they are not chosen on devtest; the second is the paper's.
DEFAULTS: Final = {STRENGTH: "1e-4", LAMBDA2: "3e-8", FRACTION: "0.1"}


def _control(name: str, option: str) -> Row:
    """Return the row of OSCAR with another option."""
    overrides = (*OSCAR, *RULE_ID, "lm=folds", option)
    return Row(name, "train, dev", "+group", overrides, "folds", like="oscar")


# In the order of the paper; each row with lm=full, as the paper has it, below the one without.
ROWS: Final = {
    "mert_dev": Row(
        "MERT", "dev", "default", ("tuner=mert", *DENSE), published=Published(8, 8, 45.7, 40.6, 15)
    ),
    "pro_dev": Row(
        "PRO", "dev", "default", (*PRO, *DENSE), published=Published(8, 8, 46.3, 41.1, 34)
    ),
    "pro_train": Row(
        "PRO",
        "train",
        "default",
        (*PRO, *DENSE, *ON_TRAIN, "lm=folds"),
        "folds",
        published=Published(8, 8, 42.8, 36.8, 834),
    ),
    "pro_train_full": Row("PRO", "train", "default", (*PRO, *DENSE, *ON_TRAIN, "lm=full"), "full"),
    "pro_dev_id": Row(
        "PRO", "dev", "+id", (*PRO, *RULE_ID), published=Published(11081, 4534, 45.5, 40.2, 47)
    ),
    "l1_train_id": Row(
        "L1",
        "train",
        "+id",
        (*L1, *RULE_ID, *ON_TRAIN, "lm=folds"),
        "folds",
        swept=STRENGTH,
        published=Published(584, 71, 42.7, 36.9, 975),
    ),
    "l1_train_id_full": Row(
        "L1", "train", "+id", (*L1, *RULE_ID, *ON_TRAIN, "lm=full"), "full", like="l1_train_id"
    ),
    "l1_dev_id": Row(
        "L1",
        "dev",
        "+id",
        (*L1, *RULE_ID),
        swept=STRENGTH,
        published=Published(443, 248, 46.2, 41.0, 39),
    ),
    "oscar": Row(
        "OSCAR",
        "train, dev",
        "+group",
        (*OSCAR, *RULE_ID, "lm=folds"),
        "folds",
        swept=LAMBDA2,
        published=Published(503, 425, 46.9, 41.8, 1256),
    ),
    "oscar_full": Row(
        "OSCAR", "train, dev", "+group", (*OSCAR, *RULE_ID, "lm=full"), "full", like="oscar"
    ),
    # Is it grouping, selection, or luck? None of these is in the paper.
    "oscar_minimum": Row(
        "OSCAR, groups of the minimum",
        "train, dev",
        "+group",
        (*GROUPING, "regularizer=oscar", *RULE_ID, "lm=folds", "tuner.learning=batch"),
        "folds",
        swept=FRACTION,
    ),
    "oscar_single": _control("OSCAR, each feature alone", "tuner.control=single"),
    "oscar_shuffled": _control("OSCAR, groups shuffled", "tuner.control=shuffled"),
    "random_pairs": _control("groups of random pairs", "tuner.learning=random_pairs"),
    "clusters": Row(
        "clusters of L1's weights",
        "train, dev",
        "+group",
        (*GROUPING, *RULE_ID, "lm=folds", "tuner.learning=clusters"),
        "folds",
    ),
    "mira_dev": Row("k-best MIRA (not in the paper)", "dev", "default", ("tuner=mira", *DENSE)),
}

# The model of all rows, and of the experiments: that of the first ones, not today's default.
SYSTEM: Final = ("model=liu2013",)

# What rows took that were done before, and the sizes of the training data.
MEASURED: Final = REPOSITORY / "docs" / "results" / "liu2013" / "table.csv"
SENTENCES: Final = {"multi30k": 29_000, "fisher": 18_872}


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    command: str
    train_sentences: int
    iterations: int
    seed: int
    threads: int
    grids: dict[str, list[float]]
    sweep_iterations: int | None
    extra: tuple[str, ...]


def corpus_overrides(name: str, options: Options) -> tuple[str, ...]:
    """Return the overrides that all rows of a corpus have."""
    # test is translated when a row is done, and not needed before.
    return (f"data={name}", f"threads={options.threads}", *SYSTEM, *options.extra)


def row_overrides(name: str, row: Row, options: Options) -> tuple[str, ...]:
    """Return the overrides of train.py for a row, but for a value that another row chooses."""
    overrides = [*corpus_overrides(name, options), "data.test=null", f"seed={options.seed}"]
    overrides += [f"tuner.iterations={options.iterations}", "tuner.patience=3", *row.overrides]
    if "train" in row.tuning_set and options.train_sentences:
        overrides.append(f"tuner.sentences={options.train_sentences}")
    return tuple(overrides)


def do_row(key: str, corpus: Corpus, name: str, options: Options) -> Result | None:
    """Tune a row, or what is left of it, and try its weights; None if tuning failed."""
    row = ROWS[key]
    folder = options.folder / name / key
    before = Result.load(folder)
    run = Run(folder, row_overrides(name, row, options))
    points: list[dict[str, Any]] = []
    chosen = ""
    option = row.swept or (ROWS[row.like].swept if row.like else "")
    if grid := options.grids.get(row.swept):
        found = sweep(option, grid, sweep_run(run, options))
        if not found:
            return None
        points = [_point(corpus, point) for point in found]
        best = max(range(len(points)), key=lambda i: points[i]["devtest"])
        chosen = points[best]["option"]
        if options.sweep_iterations is None:
            run = found[best]
        else:
            run = Run(folder, (*run.overrides, chosen))
    elif option:
        like = Result.load(options.folder / name / row.like) if row.like else None
        chosen = like.chosen if like is not None else f"{option}={DEFAULTS[option]}"
        run = Run(folder, (*run.overrides, chosen))
    if not complete(run):
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
        training_sentences=training_sentences(row.tuning_set, options.train_sentences, corpus),
        seed=options.seed,
        chosen=chosen,
        points=points,
        command=options.command,
    )
    if run.folder != folder:
        shutil.copyfile(run.folder / DEVTEST, folder / DEVTEST)
    result.save(folder)
    return result


def sweep_run(run: Run, options: Options) -> Run:
    """Return the run that a row's option is chosen with: the row's own, or a shorter one."""
    if options.sweep_iterations is None:
        return run
    shorter = f"tuner.iterations={options.sweep_iterations}"
    overrides = tuple(shorter if o.startswith("tuner.iterations=") else o for o in run.overrides)
    return Run(run.folder / SWEEP, overrides)


def _point(corpus: Corpus, run: Run) -> dict[str, Any]:
    """Return what came out of a value of a sweep."""
    log = read_log(run.folder)
    return {
        "option": run.overrides[-1],
        "dev": log.dev,
        "devtest": corpus.score("devtest", run.overrides, run.folder),
        "active": log.active,
        "minutes": run.minutes,
        "cpu_minutes": run.cpu_minutes,
    }


def compare_rows(corpus: Corpus, folder: Path) -> None:
    """Compare the rows of a corpus that are done with the baseline, where that is still to do.

    Rows whose translations are gone have no p-value then.
    """
    baseline = Result.load(folder / BASELINE)
    if baseline is None:
        return
    scores = [baseline.devtest, baseline.test]
    for key in ROWS:
        result = Result.load(folder / key)
        if key == BASELINE or result is None:
            continue
        if result.compared == scores and result.significance == SIGNIFICANCE:
            continue
        files = [(folder / BASELINE / file, folder / key / file) for file in (DEVTEST, TEST)]
        if all(path.is_file() for pair in files for path in pair):
            result.p_devtest = corpus.p_value("devtest", *files[0])
            result.p_test = corpus.p_value("test", *files[1])
            result.significance = SIGNIFICANCE
        else:
            result.p_devtest = result.p_test = None
            result.significance = NOT_AGAIN
        result.compared = scores
        result.save(folder / key)


def write_tables(folder: Path, output: Path) -> None:
    """Write table.md, table.csv and the plot of all rows that are done."""
    sections = []
    for name, about in CORPORA.items():
        results = [r for key in ROWS if (r := Result.load(folder / name / key)) is not None]
        if results:
            sections.append(Section(name, about, results))
    if not sections:
        return
    published = {key: row.published for key, row in ROWS.items() if row.published is not None}
    text = tables.markdown(TITLE, NOTES, sections, published, BASELINE)
    with atomic_writer(output / "table.md") as file:
        file.write(text)
    tables.write_csv(output / "table.csv", sections)
    tables.plot(output / "bleu-by-features.png", sections)


def forecasts(
    keys: Sequence[str], names: Sequence[str], options: Options
) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes."""
    measured = forecast.read_measured(MEASURED)
    for name in names:
        for key in keys:
            row = ROWS[key]
            values = len(options.grids.get(row.swept, ())) if row.swept else 0
            swept = options.sweep_iterations or options.iterations
            iterations = options.iterations if not values or options.sweep_iterations else 0
            iterations += values * swept
            # Other rows that were never measured learn groups, as OSCAR's do.
            like = (key, key.removesuffix("_full"), "oscar")
            known = next((k for k in like if (name, k) in measured), "oscar")
            sentences = options.train_sentences or SENTENCES.get(name, 0)
            hours = forecast.hours(measured, name, known, sentences, iterations)
            yield f"{name}/{key}", Result.load(options.folder / name / key) is not None, hours


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
        "--sweep",
        action="store_true",
        help="choose the strengths of L1 and OSCAR on devtest, as the paper did",
    )
    parser.add_argument(
        "--sweep-iterations",
        type=int,
        metavar="T",
        help="choose them from runs of so many iterations, each, and run the chosen one in full",
    )
    parser.add_argument("--strengths", type=float, nargs="+", default=[1e-5, 1e-4, 1e-3])
    parser.add_argument("--lambda2s", type=float, nargs="+", default=[3e-10, 3e-9, 3e-8])
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.02, 0.1, 0.5])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="cores a run (default: 1)")
    add_common(parser, "liu2013")
    options = parser.parse_args(arguments)
    if options.small and options.corpora:
        parser.error("--small has a corpus of its own: leave --corpora out")
    if options.sweep_iterations is not None and not options.sweep:
        parser.error("--sweep-iterations needs --sweep")
    for name in ("train_sentences", "iterations", "seed"):
        if (getattr(options, name) or 0) < 0:
            parser.error(f"--{name.replace('_', '-')} must be 0 or more")
    return options


def as_command(given: argparse.Namespace) -> str:
    """Return the command that repeats the results, wherever they are written."""
    words = ["python scripts/reproduce/liu2013.py"]
    words += said(given, {"small": False, **dict.fromkeys(["corpora", "train_sentences"])})
    words += said(given, {"iterations": None})
    if given.sweep:
        # Also where they are the default ones.
        grids = dict.fromkeys(["strengths", "lambda2s", "fractions"])
        words += said(given, {"sweep": False, "sweep_iterations": None, **grids})
    return " ".join([*words, *said(given, {"seed": 1, "threads": 1, "set": []})])


def as_options(given: argparse.Namespace) -> Options:
    """Return the options of all rows."""
    sentences, iterations = given.train_sentences, given.iterations
    if sentences is None:
        sentences = SMALL_SENTENCES if given.small else TRAIN_SENTENCES
    grids = {STRENGTH: given.strengths, LAMBDA2: given.lambda2s, FRACTION: given.fractions}
    return Options(
        folder=given.folder.resolve(),
        command=as_command(given),
        train_sentences=sentences,
        iterations=iterations or (3 if given.small else 15),
        seed=given.seed,
        threads=given.threads,
        grids=grids if given.sweep else {},
        sweep_iterations=given.sweep_iterations,
        extra=(*(SMALL if given.small else ()), *given.set),
    )


def do_rows(given: argparse.Namespace) -> list[str]:
    """Do rows and write the tables; return which have failed."""
    options = as_options(given)
    keys = given.rows or sorted(ROWS, key=lambda key: key != BASELINE)
    names = chosen_corpora(given)
    if given.forecast:
        rows = forecasts(keys, names, options)
        forecast.print_hours(rows, MEASURED.relative_to(REPOSITORY))
        return []
    failed = []
    for name in names:
        corpus = Corpus(corpus_overrides(name, options), stand_ins(given))
        for key in keys:
            print(f"{name}: {key}", flush=True)
            result = do_row(key, corpus, name, options)
            if result is None:
                failed.append(f"{name}/{key}")
                print(f"  failed; see {options.folder / name / key / LOG}", flush=True)
                continue
            compare_rows(corpus, options.folder / name)
            write_tables(options.folder, options.folder)
            print(
                f"  devtest {result.devtest:.2f}, test {result.test:.2f}, {result.active:,} "
                f"active, {result.reused:,} reused, {result.minutes:.1f} minutes",
                flush=True,
            )
    if given.publish is not None:
        write_tables(options.folder, given.publish)
    print(options.folder / "table.md")
    return failed


def main() -> int:
    given = parse(sys.argv[1:])
    return ended(lambda: do_rows(given))


if __name__ == "__main__":
    sys.exit(main())
