"""The table of Simianer et al. (2012): python scripts/reproduce/simianer2012.py [--small].

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

import domains
import forecast
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
from domains import OUT
from measured import measured, training_sentences
from published import merged
from runs import LOG, REPOSITORY, WEIGHTS, Run, complete, said_path
from tables import Section, tuning_set
from tuned import Corpus

from torchtune_smt.core.textio import atomic_writer

# The bitext has some 28 times as many sentences as dev.
EPOCHS: Final = {"dev": 10, "train": 3}
SMALL: Final = ("decoder.pop_limit=20", "decoder.k=50", "parallel.shards=2")
SMALL_SENTENCES: Final = 60
TITLE: Final = "Simianer et al. (2012): the results on News Commentary, with other data"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). Superscripts: algorithms "
    "whose translations of the same set, with the same features and seed, differ significantly (p "
    f"< {tables.SIGNIFICANT}, approximate randomisation, 10,000 trials), as in the paper. Active: "
    "weights that are not 0, dense ones among them. Algorithm 1 and 2 return the average over "
    "epochs, Algorithms 3 and 4 the last epoch's weights.",
    "A step is taken after each sentence, for all of its pairs in the wrong order, as the authors' "
    "dtrain does; 1p is as their slides have it, with a step after each pair.",
    "Not in the paper: 4d has a shard for each domain of the training data; 4s starts from the "
    "dense weights that Algorithm 1 has tuned on dev; 4+1 is Algorithm 1 on dev, from the weights "
    "of Algorithm 4 on; m is k-best MIRA; 4+m keeps the sparse part of 4 but for one factor, which "
    "it tunes on dev beside the dense weights; a and 3a are 1 and 3 with AdaGrad, logistic loss, "
    "L1, and the best epoch on dev, as train.py tunes by default. Times are those of a row alone, "
    "without that of the one it starts from.",
    "Out: the test set out of the domain. Domains are clusters of source sentences (k-means of "
    "tf-idf vectors); the last one was left out of all that models are built from and tuned on, of "
    "devtest and of test, and its sentences of dev, devtest and test are the other test set.",
    "Training data is decoded with leave-one-out grammars and language models of the other folds "
    "(`lm=folds`), in shards of about 1,000 sentences.",
)
MISSING: Final = "not run"


class Published(NamedTuple):
    """A row as the paper has it, on News Commentary; features as printed."""

    features: str
    test: float


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    algorithm : str
        1 to 4, and what is different from the paper's.
    tuning_set, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    published : Published, optional
        The paper's figures.
    start : str
        The row whose weights it starts from; empty: from 0.
    by_domain : bool
        Whether there is a shard for each domain.
    """

    algorithm: str
    tuning_set: str
    features: str
    overrides: tuple[str, ...]
    published: Published | None = None
    start: str = ""
    by_domain: bool = False

    @property
    def on_train(self) -> bool:
        """Whether it tunes on training data itself."""
        return ON_TRAIN[0] in self.overrides


@dataclass
class Result(tables.Result):
    """What came out of a row; `method` is the algorithm.

    Attributes
    ----------
    out : float
        BLEU out of the domain.
    differs, differs_out : dict of str to float
        p of the difference from other rows with the same features on test and out of the domain,
        by row.
    """

    out: float = 0.0
    differs: dict[str, float] = field(default_factory=dict)
    differs_out: dict[str, float] = field(default_factory=dict)


EXPERIMENT: Final = "experiment=simianer2012"
# A step after each sentence, for all of its pairs in the wrong order, as dtrain takes them.
ALGORITHM: Final = (EXPERIMENT, "loss.reduction=sum")
DENSE: Final = (*ALGORITHM, "features=dense")
SPARSE: Final = (*ALGORITHM, "features=sparse")
ON_TRAIN: Final = ("tuner.tune_on=train", "lm=folds")
MIX: Final = (*ON_TRAIN, "parallel=mix", "tuner.result=average")
ITERMIX: Final = (*ON_TRAIN, "parallel=itermix", "tuner.result=last")
ITERSEL: Final = (*ON_TRAIN, "parallel=itersel", "tuner.result=last")
MIRA: Final = ("tuner=mira", "decoder.k=100")
# Dense weights, and one factor of all sparse ones.
SCALE: Final = ("features=sparse", *MIRA, "tuner.sparse=scale")
# As train.py tunes by default: AdaGrad, logistic loss, L1, the best epoch on dev.
ADAGRAD: Final = ("features=sparse",)
MORE: Final = "+id,ng,shape"

# In the order of the paper.
ROWS: Final = {
    "1_dev_default": Row("1", "dev", "default", DENSE, Published("12", 28.0)),
    # As the slides have it: a step after each pair.
    "1_dev_default_each": Row("1p", "dev", "default", (EXPERIMENT, "features=dense")),
    "1_dev_sparse": Row("1", "dev", MORE, SPARSE, Published("180k", 28.15)),
    "2_train_default": Row("2", "train", "default", (*DENSE, *MIX), Published("12", 27.86)),
    "2_train_sparse": Row("2", "train", MORE, (*SPARSE, *MIX), Published("4.7M", 27.86)),
    "3_train_default": Row("3", "train", "default", (*DENSE, *ITERMIX), Published("12", 27.94)),
    "3_train_sparse": Row("3", "train", MORE, (*SPARSE, *ITERMIX), Published("4.7M", 28.55)),
    "4_train_sparse": Row("4", "train", MORE, (*SPARSE, *ITERSEL), Published("100k", 28.81)),
    # Not in the paper.
    "4_domains_sparse": Row("4d", "train", MORE, (*SPARSE, *ITERSEL), by_domain=True),
    "4_started_sparse": Row("4s", "train", MORE, (*SPARSE, *ITERSEL), start="1_dev_default"),
    "4_then_dev_sparse": Row("4+1", "train, then dev", MORE, SPARSE, start="4_train_sparse"),
    "4_then_scale_sparse": Row("4+m", "train, then dev", MORE, SCALE, start="4_train_sparse"),
    "mira_dev_default": Row("m", "dev", "default", (*MIRA, "features=dense")),
    "mira_dev_sparse": Row("m", "dev", MORE, (*MIRA, "features=sparse")),
    "adagrad_dev_sparse": Row("a", "dev", MORE, ADAGRAD),
    "adagrad_train_sparse": Row("3a", "train", MORE, (*ADAGRAD, *ON_TRAIN, "parallel=itermix")),
    "adagrad_then_dev_sparse": Row(
        "3a+a", "train, then dev", MORE, ADAGRAD, start="adagrad_train_sparse"
    ),
}

# Rows that are to have several seeds; others have the first alone.
SEVERAL: Final = (
    "4_train_sparse",
    "4_then_scale_sparse",
    "mira_dev_default",
    "mira_dev_sparse",
    "adagrad_dev_sparse",
    "adagrad_train_sparse",
    "adagrad_then_dev_sparse",
)
SEEDS: Final = (1, 2, 3)
# What rows took that were done before.
CSV: Final = "table.csv"
MEASURED: Final = REPOSITORY / "docs" / "results" / "simianer2012" / CSV


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    command: str
    train_sentences: int
    # 0: as many as `EPOCHS` has.
    epochs: int
    seeds: tuple[int, ...]
    workers: int
    extra: tuple[str, ...]


def epochs(row: Row, options: Options) -> int:
    """Return how many epochs a row has."""
    return options.epochs or EPOCHS["train" if row.on_train else "dev"]


def with_starts(keys: Sequence[str]) -> list[str]:
    """Return rows and those whose weights they start from, in the order of the table."""
    wanted = set(keys)
    while more := {ROWS[key].start for key in wanted} - wanted - {""}:
        wanted |= more
    return [key for key in ROWS if key in wanted]


def data_folder(folder: Path, name: str) -> Path:
    """Return where the sets of a corpus are, without the domain that is kept apart."""
    return folder / name / "data"


def corpus_overrides(name: str, options: Options) -> tuple[str, ...]:
    """Return the overrides that all rows of a corpus have."""
    # Those of shards have no effect without any.
    extra = (o for o in options.extra if not o.startswith("parallel."))
    return (
        f"data={name}",
        f"data.folders=[{said_path(data_folder(options.folder, name))}]",
        f"model.folder={said_path(options.folder / name / 'model')}",
        *extra,
    )


def row_overrides(name: str, row: Row, seed: int, options: Options) -> tuple[str, ...]:
    """Return the overrides of train.py for a row."""
    overrides = [*corpus_overrides(name, options), "data.test=null", f"seed={seed}"]
    overrides += row.overrides
    if "tuner=mira" not in row.overrides:
        overrides.append(f"tuner.epochs={epochs(row, options)}")
    if row.start:
        start = place(options.folder, name, row.start, seed) / WEIGHTS
        overrides += ["init=file", f"init.file={said_path(start)}"]
    if not row.on_train:
        return (*overrides, f"threads={options.workers}")
    if options.train_sentences:
        overrides.append(f"tuner.sentences={options.train_sentences}")
    shards = [o for o in options.extra if o.startswith("parallel.")]
    if row.by_domain:
        labels = data_folder(options.folder, name) / domains.LABELS
        shards = [o for o in shards if not o.startswith("parallel.shards=")]
        shards.append(f"parallel.labels={said_path(labels)}")
    return (*overrides, *shards, f"engine.workers={options.workers}", "threads=1")


def place(folder: Path, name: str, key: str, seed: int) -> Path:
    """Return the folder of a row."""
    return folder / name / f"{key}-seed{seed}"


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


def results_of(folder: Path, name: str) -> dict[tuple[str, int], Result]:
    """Return the rows of a corpus that are done, by row and seed, in the order of the table."""
    found = {}
    for key in ROWS:
        for path in sorted((folder / name).glob(f"{key}-seed*")):
            result = Result.load(path)
            if result is not None:
                found[key, result.seed] = result
    return found


def compare_rows(corpus: Corpus, folder: Path, name: str) -> None:
    """Compare rows with the same features and seed, where that is still to do.

    Both have the p-value of their difference. What one of them alone has, or has otherwise, is from
    before the other was done again: it is computed anew, or dropped where translations are gone.
    """
    results = results_of(folder, name)
    for (row, seed), (other, other_seed) in combinations(results, 2):
        ours, theirs = results[row, seed], results[other, other_seed]
        if seed != other_seed or ours.features != theirs.features:
            continue
        places = [place(folder, name, key, seed) for key in (row, other)]
        for one, field_ in (("test", "differs"), (OUT, "differs_out")):
            differs: dict[str, float] = getattr(ours, field_)
            beside: dict[str, float] = getattr(theirs, field_)
            if other in differs and differs[other] == beside.get(row):
                continue
            files = [at / f"{one}.translations.txt" for at in places]
            if all(file.is_file() for file in files):
                differs[other] = beside[row] = corpus.p_value(one, *files)
            elif other in differs or row in beside:
                differs.pop(other, None)
                beside.pop(row, None)
            else:
                continue
            ours.save(places[0])
            theirs.save(places[1])


def write_tables(folder: Path, output: Path) -> None:
    """Write table.md and table.csv of all rows that are done, and say which are missing.

    Rows that the folder has from before, and that were not done again, stay.
    """
    lines = [f"# {TITLE}", ""]
    for note in NOTES:
        lines += [note, ""]
    sections = []
    for name, about in CORPORA.items():
        done = results_of(folder, name)
        found = merged(done, output / CSV, Result, name)
        results = in_order(found.results)
        for row, before in found.before.items():
            if row not in found.changed:
                _keep_comparisons(results[row], before, found.changed)
        if not results:
            continue
        sections.append(Section(name, about, list(results.values())))
        lines += [f"## {name}", "", f"{about} {_apart(name)}", ""]
        lines += tables.header(sections[-1].results)
        lines += [*_table(results), "", *_over_seeds(results), *_missing(results)]
        lines += _not_compared(results)
    if not sections:
        return
    with atomic_writer(output / "table.md") as file:
        file.write("\n".join(lines))
    tables.write_csv(output / CSV, sections)


def _keep_comparisons(result: Result, before: Result, changed: set[tuple[str, int]]) -> None:
    """Give a result the comparisons that are published of it, but those with what has changed."""
    for name in ("differs", "differs_out"):
        published: dict[str, float] = getattr(before, name)
        kept = {row: p for row, p in published.items() if (row, before.seed) not in changed}
        done = {} if result is before else getattr(result, name)
        setattr(result, name, kept | done)


def in_order(results: Mapping[tuple[str, int], Result]) -> dict[tuple[str, int], Result]:
    """Return results in the order of the table."""
    keys = list(ROWS)
    return dict(sorted(results.items(), key=lambda item: (keys.index(item[0][0]), item[0][1])))


def _over_seeds(results: Mapping[tuple[str, int], Result]) -> list[str]:
    """Return the means of rows that were done with several seeds, as lines of Markdown."""
    rows = {key: [r for (row, _), r in results.items() if row == key] for key in SEVERAL}
    several = {key: done for key, done in rows.items() if len(done) > 1}
    if not several:
        return []
    lines = [
        "Mean and standard deviation over seeds:",
        "",
        "| algorithm | features | seeds | BLEU devtest | BLEU test | BLEU out |",
        "|---|---|---|---|---|---|",
    ]
    for done in several.values():
        cells = [done[0].method, done[0].features, ", ".join(str(r.seed) for r in done)]
        for name in ("devtest", "test", "out"):
            cells.append(tables.spread_cell([getattr(result, name) for result in done]))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _missing(results: Mapping[tuple[str, int], Result]) -> list[str]:
    """Return which seeds of rows that are to have several were not run, as a paragraph."""
    missing = []
    for key in SEVERAL:
        left = [str(seed) for seed in SEEDS if (key, seed) not in results]
        if left:
            missing.append(f"{ROWS[key].algorithm}, {ROWS[key].features} ({', '.join(left)})")
    return [f"Seeds that were not run: {'; '.join(missing)}.", ""] if missing else []


def _not_compared(results: Mapping[tuple[str, int], Result]) -> list[str]:
    """Return which rows with the same features and seed were not compared, as a paragraph."""
    pairs = [
        f"{ROWS[key].algorithm} with {ROWS[other].algorithm} ({result.features}, seed {seed})"
        for (key, seed), result in results.items()
        for other, beside in ((o, r) for (o, s), r in results.items() if s == seed)
        if beside.features == result.features
        and other not in {key, *result.differs}
        # Each pair once, as it stands in the table.
        and list(ROWS).index(key) < list(ROWS).index(other)
    ]
    if not pairs:
        return []
    return [f"Not compared, as they were not done on one machine: {'; '.join(pairs)}.", ""]


def _apart(name: str) -> str:
    """Return how much of a corpus its last domain is."""
    split = domains.read_split(domains.FOLDER / f"{name}.txt")
    sizes = [f"{found[-1].size:,} of {one}" for one, found in split.items()]
    return f"Kept apart, as sentences of domain {len(split['train'])}: {', '.join(sizes)}."


def _table(results: Mapping[tuple[str, int], Result]) -> list[str]:
    lines = [
        "| algorithm | tuning set | features | seed | epochs | active | BLEU devtest | BLEU test "
        "| BLEU out | minutes an epoch | CPU minutes an epoch | paper: features | paper: test-nc |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in ROWS.items():
        done = [result for (other, _), result in results.items() if other == key]
        paper = ["-", "-"]
        if row.published is not None:
            paper = [row.published.features, f"{row.published.test:.2f}"]
        for r in done:
            epochs = max(r.iterations, 1)
            cells = [r.method, tuning_set(r), r.features, str(r.seed), str(r.iterations)]
            cells += [f"{r.active:,}", f"{r.devtest:.2f}", f"{r.test:.2f}{_raised(r.differs)}"]
            cells += [f"{r.out:.2f}{_raised(r.differs_out)}"]
            cells += [f"{r.minutes / epochs:.2f}", f"{r.cpu_minutes / epochs:.2f}"]
            lines.append(f"| {' | '.join([*cells, *paper])} |")
        if not done:
            cells = [row.algorithm, row.tuning_set, row.features, MISSING, *["-"] * 7]
            lines.append(f"| {' | '.join([*cells, *paper])} |")
    return lines


def _raised(differs: Mapping[str, float]) -> str:
    """Return the algorithms that differ significantly, as a superscript."""
    found = sorted(ROWS[key].algorithm for key, p in differs.items() if p < tables.SIGNIFICANT)
    return f"<sup>{','.join(found)}</sup>" if found else ""


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
    return " ".join(["python scripts/reproduce/simianer2012.py", *said(given, defaults)])


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
