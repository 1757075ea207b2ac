"""The experiments of Green et al. (2013): python scripts/reproduce/green2013.py [--small].

Tunes each row with a run of train.py, tries the weights on devtest and test, and writes tables:
own.md and own.csv, of systems with phrase tables that this project builds, and table.md and
table.csv, of systems with those that Moses had (green2013_moses.py). Rows that are finished are not
run again, and one that was stopped is taken up where it was: the same command goes on. Rows that
have not been run are listed as missing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import forecast
import green2013_moses
import numpy as np
import tables
from command_line import (
    CORPORA,
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
from domains import chosen, dataset_of, read_set, write_set
from measured import measured
from published import merged_with_p, void
from runs import LOG, REPOSITORY, Run, complete, said_path
from tables import Section
from tuned import DEVTEST, SIGNIFICANCE, TEST, Corpus

from torchtune_smt.core.textio import atomic_folder, atomic_path, atomic_writer
from torchtune_smt.runs.curves import read_metrics
from torchtune_smt.runs.times import round_seconds

KINDS: Final = ("own", "moses")
# A set of 1,000 sentences, drawn once from dev where that is larger.
SMALL_DEV: Final = "dev_small"
SMALL_DEV_SENTENCES: Final = 1000
# Sentences that are tuned on; of dev with all of them, of train with --small a part of them.
SIZES: Final = {
    "multi30k": {"dev": 1014, "train5k": 5000, "train15k": 15_000},
    "fisher": {"dev": SMALL_DEV_SENTENCES, "dev_large": 3967, "train5k": 5000, "train15k": 15_000},
    "example": {"dev": 100, "train5k": 60, "train15k": 120},
}
SETS: Final = ("dev", "dev_large", "train5k", "train15k")
ON_DEV: Final = ("dev", "dev_large")
# Seeds where none are given.
SEEDS: Final = {"dev": (1, 2, 3)}
SMALL: Final = ("decoder.pop_limit=20", "decoder.stack_size=20", "decoder.k=20")
BASELINE: Final = "mira_dense"
TITLE: Final = "Green et al. (2013), with tables of this project"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). p: of the difference from "
    "k-best MIRA with dense features, tuned on the same set with the same seed, or, for rows tuned "
    "on training data, on the small dev set; by approximate randomisation (10,000 trials), bold "
    f"below {tables.SIGNIFICANT}. Active: weights that are not 0, dense ones among them. Reused: "
    "those of them that fire in a translation of test. Epochs (iterations, of batch tuners): the "
    "one with the best BLEU on dev, whose weights were kept, and all. s an epoch: seconds, with "
    "decoding and without the evaluation on dev; of batch tuners all of it. CPU minutes: of "
    "tuning.",
    "Training data is decoded with leave-one-out tables and language models of the other folds "
    "(`lm=folds`); which epoch is kept is decided on the small dev set. Multi30k has no larger dev "
    "set: rows of that are of Fisher alone, whose small one is a sample of it (1,000 sentences).",
)


@dataclass(frozen=True)
class Row:
    """A system, and how it is tuned.

    Attributes
    ----------
    method, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    sets : tuple of str
        What it is tuned on.
    """

    method: str
    features: str
    overrides: tuple[str, ...]
    sets: tuple[str, ...] = SETS

    @property
    def online(self) -> bool:
        """Whether it has epochs, and not iterations."""
        return self.overrides[0] == ADAGRAD[0]


DENSE: Final = "features=dense"
PT: Final = green2013_moses.templates("RuleId")
AL_LO: Final = green2013_moses.templates("WordAlignment", "LexReordering")
ALL: Final = "features=green2013_phrase"
ADAGRAD: Final = ("experiment=green2013",)


def _batch(method: str, tuner: str, features: str, templates: str) -> Row:
    return Row(method, features, (f"tuner={tuner}", "decoder=phrase", templates), ON_DEV)


# What was chosen for these data, in place of the paper's settings: BLEU+1 makes translations short.
TUNED: Final = (*ADAGRAD, "metric=nakov")

ROWS: Final = {
    "mert_dense": _batch("MERT", "mert", "dense", DENSE),
    "pro_dense": _batch("PRO", "pro", "dense", DENSE),
    BASELINE: _batch("k-best MIRA", "mira", "dense", DENSE),
    "pro_pt": _batch("PRO", "pro", "+PT", PT),
    "mira_pt": _batch("k-best MIRA", "mira", "+PT", PT),
    "pro_pt_al_lo": _batch("PRO", "pro", "+PT+AL+LO", ALL),
    "mira_pt_al_lo": _batch("k-best MIRA", "mira", "+PT+AL+LO", ALL),
    "adagrad_dense": Row("AdaGrad", "dense", (*ADAGRAD, DENSE)),
    "adagrad_pt": Row("AdaGrad, L1", "+PT", (*ADAGRAD, PT)),
    # Not in the paper.
    "adagrad_al_lo": Row("AdaGrad, L1", "+AL+LO", (*ADAGRAD, AL_LO)),
    "adagrad_pt_al_lo": Row("AdaGrad, L1", "+PT+AL+LO", ADAGRAD),
    # Two questions that the paper leaves open.
    "once_an_epoch": Row(
        "AdaGrad, L1 once an epoch",
        "+PT+AL+LO",
        (*ADAGRAD, "optimizer.regularize_each=epoch"),
        ("dev",),
    ),
    "stale": Row(
        "AdaGrad, L1, stale gradients, 2 workers",
        "+PT+AL+LO",
        (*ADAGRAD, "parallel=stale", "parallel.workers=2"),
        ("dev", "train5k"),
    ),
    "itermix": Row(
        "AdaGrad, L1, iterative mixing, 2 workers",
        "+PT+AL+LO",
        (*ADAGRAD, "parallel=itermix", "parallel.shards=2", "engine.workers=2"),
        ("dev", "train5k"),
    ),
    # With settings that were chosen for these data.
    "adagrad_dense_tuned": Row("AdaGrad, tuned", "dense", (*TUNED, DENSE)),
    "adagrad_al_lo_tuned": Row("AdaGrad, L1, tuned", "+AL+LO", (*TUNED, AL_LO)),
    "adagrad_pt_al_lo_tuned": Row("AdaGrad, L1, tuned", "+PT+AL+LO", TUNED),
}
# BLEU by time.
BY_TIME: Final = ("adagrad_pt_al_lo", "stale", "itermix")
# Of the picture of them.
PANELS_A_ROW: Final = 3
# What rows took that were done before.
CSV: Final = "own.csv"
MEASURED: Final = REPOSITORY / "docs" / "results" / "green2013" / CSV


@dataclass
class Result(tables.Result):
    """What came out of a row; `row` is the set and the row, as in ``dev/mert_dense``.

    Attributes
    ----------
    seconds : list of float
        Of each epoch, or iteration.
    dev_by_epoch : list of float
        BLEU on dev before tuning, and after each epoch.
    """

    seconds: list[float] = field(default_factory=list)
    dev_by_epoch: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    command: str
    epochs: int | None
    seeds: tuple[int, ...]
    extra: tuple[str, ...]

    def seeds_of(self, one: str) -> tuple[int, ...]:
        """Return the seeds of rows that are tuned on a set."""
        return self.seeds or SEEDS.get(one, (1,))


def rows_of(name: str, keys: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Return the rows that there are of a corpus, as SET/ROW."""
    there = [one for one in sets if one in SIZES[name]]
    keys = [key for key in keys if key in ROWS]
    return [f"{one}/{key}" for one in there for key in keys if one in ROWS[key].sets]


def runs_of(
    name: str, keys: Sequence[str], sets: Sequence[str], options: Options
) -> list[tuple[str, int]]:
    """Return rows with their seeds."""
    rows = rows_of(name, keys, sets)
    return [(row, seed) for row in rows for seed in options.seeds_of(row.partition("/")[0])]


def place(options: Options, name: str, row: str, seed: int) -> Path:
    """Return the folder of a row."""
    return options.folder / "own" / name / row / f"seed{seed}"


def small_dev(name: str, options: Options) -> list[Path]:
    """Return the files of a corpus's small dev set, written if they are not there.

    It is the same set for all seeds; none where dev is small itself.
    """
    if "dev_large" not in SIZES[name]:
        return []
    folder = options.folder / "own" / name / "data"
    dataset = dataset_of(name)
    if not folder.is_dir():
        corpus = read_set(dataset, "dev")
        size = len(corpus.source)
        lines = np.random.default_rng(1).choice(size, SMALL_DEV_SENTENCES, replace=False)
        with atomic_folder(folder) as beside:
            languages = dataset.source_language, dataset.target_language
            write_set(beside, SMALL_DEV, chosen(corpus, sorted(lines)), languages)
    source = folder / f"{SMALL_DEV}.{dataset.source_language}"
    return [source, *sorted(folder.glob(f"{SMALL_DEV}.{dataset.target_language}*"))]


def corpus_overrides(name: str, options: Options) -> tuple[str, ...]:
    """Return the overrides that all rows of a corpus have."""
    model = said_path(options.folder / "own" / name / "model")
    return (f"data={name}", "data.test=null", f"model.folder={model}")


def row_overrides(
    name: str, row: str, seed: int, dev: Sequence[Path], options: Options
) -> tuple[str, ...]:
    """Return the overrides of train.py for a row.

    Parameters
    ----------
    row : str
        SET/ROW.
    dev : sequence of path
        See `small_dev`.
    """
    one, _, key = row.partition("/")
    given = ROWS[key]
    overrides = [*given.overrides, *corpus_overrides(name, options)]
    overrides += [f"seed={seed}", "threads=1"]
    if dev and one != "dev_large":
        overrides.append(f"data.dev=[{','.join(map(said_path, dev))}]")
    if one not in ON_DEV:
        overrides += ["tuner.tune_on=train", "lm=folds", f"tuner.sentences={SIZES[name][one]}"]
    if options.epochs is not None:
        rounds = "epochs" if given.online else "iterations"
        overrides.append(f"tuner.{rounds}={options.epochs}")
    return (*overrides, *options.extra)


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


def results_of(options: Options, name: str) -> list[Result]:
    """Return the rows of a corpus that are done, by set, row and seed."""
    found = []
    for row in rows_of(name, list(ROWS), SETS):
        folders = (options.folder / "own" / name / row).glob("seed*")
        done = [result for folder in folders if (result := Result.load(folder)) is not None]
        found += sorted(done, key=lambda result: result.seed)
    return found


def with_kept(results: Sequence[Result], output: Path, name: str) -> list[Result]:
    """Return results, and the published ones that were not done again, in the same order."""
    done = {(result.row, result.seed): result for result in results}
    found = merged_with_p(done, output / CSV, Result, name, baseline_of)
    order = rows_of(name, list(ROWS), SETS)
    return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))]


def baseline_of(row: str) -> str:
    """Return the row that another one is compared with."""
    one = row.partition("/")[0]
    return f"{one if one in ON_DEV else 'dev'}/{BASELINE}"


def compare_rows(corpus: Corpus, name: str, options: Options) -> None:
    """Compare rows with the baseline of the same seed, where that is still to do."""
    for result in results_of(options, name):
        folder = place(options, name, result.row, result.seed)
        beside = place(options, name, baseline_of(result.row), result.seed)
        baseline = Result.load(beside)
        if baseline is None or beside == folder:
            continue
        scores = [baseline.devtest, baseline.test]
        if result.compared == scores:
            continue
        files = [at / one for at in (beside, folder) for one in (DEVTEST, TEST)]
        if not all(file.is_file() for file in files):
            if result.p_test is not None:
                void(result)
                result.save(folder)
            continue
        result.p_devtest = corpus.p_value("devtest", beside / DEVTEST, folder / DEVTEST)
        result.p_test = corpus.p_value("test", beside / TEST, folder / TEST)
        result.significance, result.compared = SIGNIFICANCE, scores
        result.save(folder)


def write_tables(options: Options, output: Path) -> None:
    """Write own.md, own.csv and own-bleu-by-time.png of all rows that are done.

    Rows that the folder has from before, and that were not done again, stay.
    """
    lines = [f"# {TITLE}", ""]
    for note in NOTES:
        lines += [note, ""]
    sections = []
    for name, about in CORPORA.items():
        results = with_kept(results_of(options, name), output, name)
        if not results:
            continue
        sections.append(Section(name, about, list(results)))
        lines += [f"## {name}", "", about, "", *tables.header(sections[-1].results)]
        lines += [*_table(results), "", *_missing(name, results, options), ""]
        lines += _by_time([r for r in results if r.row.partition("/")[2] in BY_TIME])
    if not sections:
        return
    with atomic_writer(output / "own.md") as file:
        file.write("\n".join(lines).rstrip("\n") + "\n")
    tables.write_csv(output / CSV, sections)
    found = [r for section in sections for r in section.results]
    timed = [r for r in found if isinstance(r, Result) and r.row.partition("/")[2] in BY_TIME]
    if panels := _panels(timed):
        _plot(output / "own-bleu-by-time.png", panels)


def _table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| tuning set | method | features | seed | active | reused | BLEU dev | BLEU devtest | p "
        "| BLEU test | p | epochs | s an epoch | CPU minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    by_row: dict[str, list[Result]] = {}
    for result in results:
        by_row.setdefault(result.row, []).append(result)
    for row, done in by_row.items():
        baseline = baseline_of(row)
        for r in done:
            cells = [_set(r), r.method, r.features, str(r.seed), f"{r.active:,}", f"{r.reused:,}"]
            cells += [f"{r.dev:.2f}", f"{r.devtest:.2f}", tables.p_cell(r.p_devtest, r, baseline)]
            cells += [f"{r.test:.2f}", tables.p_cell(r.p_test, r, baseline)]
            cells += [f"{r.best} of {r.iterations}", f"{_mean(r.seconds):.1f}"]
            lines.append(f"| {' | '.join([*cells, f'{r.cpu_minutes:.1f}'])} |")
        if len(done) > 1:
            bleu = {n: _mean([getattr(r, n) for r in done]) for n in ("dev", "devtest", "test")}
            cells = [_set(done[0]), done[0].method, done[0].features, "mean"]
            cells += [f"{_mean([r.active for r in done]):,.0f}", "", f"{bleu['dev']:.2f}"]
            cells += [f"{bleu['devtest']:.2f}", "", f"{bleu['test']:.2f}", "", ""]
            cells += [f"{_mean([s for r in done for s in r.seconds]):.1f}"]
            cells += [f"{_mean([r.cpu_minutes for r in done]):.1f}"]
            lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return lines


def _set(result: Result) -> str:
    return tables.tuning_set(result)


def _mean(values: Sequence[float]) -> float:
    return statistics.mean(values) if values else 0.0


def _missing(name: str, results: Sequence[Result], options: Options) -> list[str]:
    """Return which rows, and seeds of rows, have not been run."""
    done = {(r.row, r.seed) for r in results}
    missing = []
    for row in rows_of(name, list(ROWS), SETS):
        seeds = SEEDS.get(row.partition("/")[0], (1,))
        left = [str(seed) for seed in seeds if (row, seed) not in done]
        if left:
            missing.append(f"{row} (seed {', '.join(left)})")
    return [f"Missing, as they were not run: {'; '.join(missing) or 'none'}."]


def _by_time(results: Sequence[Result]) -> list[str]:
    """Return dev BLEU by the seconds that tuning has taken."""
    if not results:
        return []
    lines = [
        "BLEU on dev after each epoch, by the seconds that tuning has taken:",
        "",
        "| tuning set | method | seed | seconds: BLEU |",
        "|---|---|---|---|",
    ]
    for r in results:
        cells = [_set(r), r.method, str(r.seed)]
        course = "; ".join(f"{seconds:.0f}: {dev:.2f}" for seconds, dev in _course(r))
        lines.append(f"| {' | '.join([*cells, course])} |")
    return [*lines, ""]


def _course(result: Result) -> list[tuple[float, float]]:
    """Return seconds of tuning, and BLEU on dev then."""
    seconds = np.cumsum([0.0, *result.seconds]).tolist()
    return list(zip(seconds, result.dev_by_epoch, strict=True))


def _panels(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the rows of each corpus and tuning set; of those alone where there are rivals."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        panels.setdefault(f"{result.corpus}, {_set(result)}", []).append(result)
    return {title: rows for title, rows in panels.items() if len({r.method for r in rows}) > 1}


def _plot(path: Path, panels: Mapping[str, Sequence[Result]]) -> None:
    """Draw dev BLEU by seconds, with a panel for each of `_panels`; seeds have one colour.

    The start, which is far below all epochs, is left out: tables have it.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(len(panels), PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.8 * columns, 4 * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for (title, found), axis in zip(panels.items(), axes.flat, strict=False):
        methods = list(dict.fromkeys(r.method for r in found))
        for r in found:
            number = methods.index(r.method)
            seen = r.seed != min(o.seed for o in found if o.method == r.method)
            axis.plot(
                *zip(*_course(r)[1:], strict=True),
                marker="osv"[number % 3],
                color=f"C{number}",
                label=None if seen else r.method,
            )
        axis.set_xlabel("seconds of tuning")
        axis.set_ylabel("BLEU on dev")
        axis.set_title(title, fontsize="medium")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)


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
                f"{result.active:,} active, {_mean(result.seconds):.1f} s an epoch, "
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
    add_corpora(parser)
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
        command=" ".join(["python scripts/reproduce/green2013.py", *said(given, defaults)]),
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
