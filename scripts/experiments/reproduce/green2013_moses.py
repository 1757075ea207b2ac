"""The rows of green2013.py with Moses's own tables, beside Moses's own tuners.

Systems have the phrase table, reordering table and language model that Moses had for Multi30k.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import forecast
from runs import LOG, REPOSITORY, WEIGHTS, Run, classes, complete, read_log
from tables import READING, Stored, p_cells, rounds_cell
from tuned import SIGNIFICANCE

from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.evaluation import Evaluation
from torchtune_smt.features.templates import template_of
from torchtune_smt.metrics.corpus import corpus_bleu

ANYWHERE: Final = "weights.test.txt"
TEST: Final = "test.translations.txt"
CORPUS: Final = "multi30k"
BASELINE: Final = "mira_dense"
SPARSE: Final = ("rule_id", "alignment", "lex_reordering")
MEASURED: Final = REPOSITORY / "docs" / "results" / "green2013" / "table.csv"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    method, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    moses : str
        What Moses reaches on test with the same tables, by its own tuner.
    ini : str
        The file of the weights with which Moses reaches that, in the folder of its tables.
    """

    method: str
    features: str
    overrides: tuple[str, ...]
    moses: str = ""
    ini: str = ""


def _batch(tuner: str) -> tuple[str, ...]:
    return (f"tuner={tuner}", "features=dense", "init=moses", "decoder=phrase", "model=moses")


def _adagrad(*overrides: str) -> tuple[str, ...]:
    return ("experiment=green2013", "model=moses", *overrides)


NAKOV: Final = "metric=nakov"


def templates(*names: str) -> str:
    """Return the override that names classes of templates."""
    classes = ",".join(f"{{_target_:torchtune_smt.features.{name}}}" for name in names)
    return f"features.templates=[{classes}]"


ROWS: Final = {
    "mert_dense": Row("MERT", "dense", _batch("mert"), "40.24", "moses.tuned.mert.best-dev.ini"),
    "pro_dense": Row("PRO", "dense", _batch("pro"), "40.38", "moses.tuned.pro.best-dev.ini"),
    "mira_dense": Row(
        "k-best MIRA", "dense", _batch("mira"), "40.61", "moses.tuned.kbmira-fixed.best-dev.ini"
    ),
    "adagrad_dense": Row("AdaGrad", "dense", _adagrad("features=dense")),
    "adagrad_pt": Row("AdaGrad, L1", "+PT", _adagrad(templates("RuleId"))),
    # Not in the paper.
    "adagrad_al_lo": Row(
        "AdaGrad, L1",
        "+AL+LO",
        _adagrad(templates("WordAlignment", "LexReordering")),
        "41.43 (k-best MIRA, 3,610 sparse features)",
    ),
    "adagrad_pt_al_lo": Row(
        "AdaGrad, L1", "+PT+AL+LO", _adagrad(), "41.05 (k-best MIRA, 15,884 weights)"
    ),
    # A metric whose brevity penalty is smoothed, too: BLEU+1 makes translations short.
    "adagrad_dense_nakov": Row(
        "AdaGrad, BLEU+1 of Nakov et al.", "dense", _adagrad("features=dense", NAKOV)
    ),
    "adagrad_al_lo_nakov": Row(
        "AdaGrad, L1, BLEU+1 of Nakov et al.",
        "+AL+LO",
        _adagrad(templates("WordAlignment", "LexReordering"), NAKOV),
    ),
    "adagrad_pt_al_lo_nakov": Row(
        "AdaGrad, L1, BLEU+1 of Nakov et al.", "+PT+AL+LO", _adagrad(NAKOV)
    ),
    "arow_pt_al_lo": Row("AROW, L1", "+PT+AL+LO", _adagrad("optimizer=arow")),
}
NOTES: Final = (
    "Multi30k, German-English, tuned on dev (1,014 sentences) with the tables and the language "
    "model of a system of Moses's, and translated with those of test (1,000); one reference. BLEU "
    "is sacrebleu's (`tokenize=none`). p: of the difference from k-best MIRA with dense features "
    "and the same seed, by approximate randomisation (10,000 trials). Active: weights that are not "
    "0, sparse ones alone. Epochs: the one with the best BLEU on dev, whose weights were kept, and "
    "all (iterations, of batch tuners). CPU minutes: of tuning, one thread. Moses: BLEU on test "
    "with its own decoder and tuners, one run each.",
)
AGAINST: Final = (
    "The same tuners of Moses's: its weights, with which test was translated by this project's "
    "decoder, against the seeds above (p: of the difference of their mean from it, by approximate "
    "randomisation)."
)


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    moses: Path
    language_model: Path
    data: Path
    extra: tuple[str, ...]


@dataclass
class Result(Stored):
    """What came out of a run.

    Attributes
    ----------
    active : int
        Sparse features with a weight.
    iterations, best : int
        Epochs or iterations, and the one whose weights were kept.
    dev, test : float
        BLEU.
    p : float, optional
        Of the difference from the baseline on test.
    compared : float, optional
        BLEU of the baseline on test when it was computed.
    training_sentences : int
        0: all runs tune on dev.
    """

    row: str
    corpus: str
    seed: int
    active: int
    iterations: int
    best: int
    dev: float
    test: float
    cpu_minutes: float
    begin: str
    end: str
    overrides: str
    p: float | None = None
    training_sentences: int = 0
    compared: float | None = None


def place(options: Options, key: str, seed: int) -> Path:
    """Return the folder of a run."""
    return options.folder / CORPUS / key / f"seed{seed}"


def tables(options: Options, split: str) -> tuple[str, ...]:
    """Return the overrides that name the tables of a set."""
    return (
        f"model.ini={options.moses / 'moses.before.ini'}",
        f"model.phrase_table={options.moses / f'phrase-table.{split}.gz'}",
        f"model.reordering_table={options.moses / f'reordering-table.{split}.gz'}",
        f"model.language_model={options.folder / options.language_model.name}",
    )


def overrides(key: str, seed: int, options: Options) -> tuple[str, ...]:
    """Return the overrides of train.py for a run."""
    common = (f"data={CORPUS}", "data.test=null", "threads=1", f"seed={seed}")
    return (*ROWS[key].overrides, *common, *tables(options, "dev"), *options.extra)


def do_run(key: str, seed: int, options: Options) -> Result | None:
    """Tune a system, or what is left of that, and translate test; None if that failed."""
    folder = place(options, key, seed)
    run = Run(folder, overrides(key, seed, options))
    if not complete(run):
        return None
    before = Result.load(folder)
    if before is not None and before.overrides == " ".join(run.overrides):
        return before
    output = folder / TEST
    if not output.is_file():
        # The tables of dev and test are parts of one, and weights say to which they belong.
        with atomic_writer(folder / ANYWHERE) as file:
            lines = read_lines(folder / WEIGHTS)
            file.writelines(f"{line}\n" for line in lines if not line.startswith("#"))
        if not translate(folder / ANYWHERE, folder, options, *classes(run.overrides)):
            return None
    log_ = read_log(folder)
    names, values = read_weights(folder / WEIGHTS)
    active = [names[i] for i in range(len(names)) if values[i] != 0]
    begin, end = run.dates
    result = Result(
        row=key,
        corpus=CORPUS,
        seed=seed,
        active=sum(template_of(name) in SPARSE for name in active),
        iterations=log_.iterations,
        best=log_.best,
        dev=log_.dev,
        test=corpus_bleu(read_lines(output), references(options)).score,
        cpu_minutes=run.cpu_minutes,
        begin=begin,
        end=end,
        overrides=" ".join(run.overrides),
    )
    result.save(folder)
    return result


def translate(weights: Path, folder: Path, options: Options, *more: str) -> bool:
    """Translate test into a folder; returns whether that worked."""
    command = [sys.executable, "scripts/translate.py", f"weights={weights}"]
    command += [f"input={options.data / 'test.de'}", f"output={folder / TEST}"]
    command += [*more, *tables(options, "test")]
    with (folder / LOG).open("ab") as log:
        done = subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)
    return done.returncode == 0


def translate_with_moses_weights(key: str, options: Options) -> bool:
    """Translate test with the weights that Moses's own tuner found; returns whether that worked."""
    folder = mosess(options, key)
    folder.mkdir(parents=True, exist_ok=True)
    ini = options.moses / ROWS[key].ini
    if (folder / TEST).is_file():
        return True
    return translate(ini, folder, options, "decoder=phrase", "model=moses", "features=dense")


def mosess(options: Options, key: str) -> Path:
    """Return the folder of what Moses's weights give."""
    return options.folder / CORPUS / key / "moses"


def references(options: Options) -> list[list[str]]:
    """Return the references of test."""
    return [[line] for line in read_lines(options.data / "test.en")]


def compare(seed: int, options: Options) -> None:
    """Compare what is done with the baseline of the same seed, where that is still to do."""
    base = place(options, BASELINE, seed)
    baseline = Result.load(base)
    if baseline is None:
        return
    for key in ROWS:
        folder = place(options, key, seed)
        result = Result.load(folder)
        if key == BASELINE or result is None or result.compared == baseline.test:
            continue
        systems = {"baseline": [read_lines(base / TEST)], "row": [read_lines(folder / TEST)]}
        (found,) = Evaluation(systems, references(options)).compare(test=SIGNIFICANCE)
        result.p, result.compared = found.p_value, baseline.test
        result.save(folder)


def results(options: Options) -> dict[str, list[Result]]:
    """Return what is done of each row, by seed."""
    found: dict[str, list[Result]] = {}
    for key in ROWS:
        folders = (options.folder / CORPUS / key).glob("seed*")
        done = [result for folder in folders if (result := Result.load(folder)) is not None]
        found[key] = sorted(done, key=lambda result: result.seed)
    return found


def against_moses(found: Mapping[str, Sequence[Result]], options: Options) -> list[str]:
    """Return the lines of a table of tuners against Moses's own, if any can be compared."""
    lines, values = [], []
    for key, done in found.items():
        its = mosess(options, key) / TEST
        if not done or not its.is_file():
            continue
        ours = [read_lines(place(options, key, r.seed) / TEST) for r in done]
        systems = {"moses": [read_lines(its)], "ours": ours}
        (c,) = Evaluation(systems, references(options)).compare(test=SIGNIFICANCE)
        cells = [ROWS[key].method, ROWS[key].moses, f"{c.baseline_score:.2f}", f"{c.score:.2f}"]
        lines.append(f"| {' | '.join([*cells, str(len(done))])} |")
        values.append(c.p_value)
    if not lines:
        return []
    cells_of = zip(lines, p_cells(values), strict=True)
    lines = [f"{line} {p} |" for line, p in cells_of]
    head = "| tuner | Moses | its weights | these | seeds | p |"
    return [AGAINST, "", head, "|---|---|---|---|---|---|", *lines, ""]


def markdown(found: Mapping[str, Sequence[Result]], options: Options) -> str:
    """Return the tables, and which rows are missing."""
    lines = ["# Green et al. (2013), with Moses's tables", ""]
    for note in (*NOTES, READING):
        lines += [note, ""]
    lines += [
        "| method | features | seed | active | BLEU dev | BLEU test | p | epochs | CPU minutes "
        "| Moses |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    every = [(key, r) for key, done in found.items() for r in done]
    column = ["baseline" if key == BASELINE else "" if r.p is None else r.p for key, r in every]
    p_of = iter(p_cells(column))
    for key, done in found.items():
        row = ROWS[key]
        for r in done:
            p = next(p_of)
            method = row.method + " §" * key.endswith("_nakov")
            cells = [method, row.features, str(r.seed), f"{r.active:,}", f"{r.dev:.2f}"]
            cells += [f"{r.test:.2f}", p, rounds_cell(r.best, r.iterations, row.overrides)]
            cells += [f"{r.cpu_minutes:.1f}"]
            lines.append(f"| {' | '.join([*cells, row.moses])} |")
        if len(done) > 1:
            dev, test = (statistics.mean(getattr(r, n) for r in done) for n in ("dev", "test"))
            mean = f"| {row.method} | {row.features} | mean | | {dev:.2f} | {test:.2f} | | | | |"
            lines.append(mean)
    missing = [f"{ROWS[key].method}, {ROWS[key].features}" for key in found if not found[key]]
    lines += ["", *against_moses(found, options)]
    lines += [f"Missing, as they were not run: {'; '.join(missing) or 'none'}."]
    return "\n".join(lines) + "\n"


def write(found: Mapping[str, Sequence[Result]], folder: Path, options: Options) -> None:
    """Write the table as Markdown and CSV."""
    with atomic_writer(folder / "table.md") as file:
        file.write(markdown(found, options))
    columns = [f.name for f in fields(Result) if f.name not in ("overrides", "compared")]
    with atomic_writer(folder / "table.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for done in found.values():
            for result in done:
                values = asdict(result)
                writer.writerow(["" if values[c] is None else values[c] for c in columns])


def lost(found: Mapping[str, Sequence[Result]], folder: Path) -> list[str]:
    """Return the rows of a published table that would be gone if it were written anew."""
    path = folder / "table.csv"
    if not path.is_file():
        return []
    here = {(result.row, str(result.seed)) for done in found.values() for result in done}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(line["row"], line["seed"]) for line in csv.DictReader(file)]
    return [f"{row}, seed {seed}" for row, seed in rows if (row, seed) not in here]


def forecasts(
    keys: Sequence[str], seeds: Sequence[int], options: Options
) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes."""
    measured = forecast.read_measured(MEASURED) if MEASURED.is_file() else {}
    for key in keys:
        iterations = 8 if "experiment=green2013" in ROWS[key].overrides else 15
        hours = forecast.hours(measured, CORPUS, key, 0, iterations)
        for seed in seeds:
            yield f"{key} seed {seed}", Result.load(place(options, key, seed)) is not None, hours


def do_runs(keys: Sequence[str], seeds: Sequence[int], options: Options) -> list[str]:
    """Do runs and write the table; return which have failed."""
    # The copy of the language model that loads at once lies beside it, where one can write.
    options.folder.mkdir(parents=True, exist_ok=True)
    link = options.folder / options.language_model.name
    if not link.exists():
        link.symlink_to(options.language_model)
    failed = [
        f"{key}, Moses's weights"
        for key in keys
        if ROWS[key].ini and not translate_with_moses_weights(key, options)
    ]
    for seed in seeds:
        for key in keys:
            print(f"Moses's tables: {key}, seed {seed}", flush=True)
            result = do_run(key, seed, options)
            if result is None:
                failed.append(f"{key}, seed {seed}")
                print(f"  failed; see {place(options, key, seed) / LOG}", flush=True)
                continue
            print(f"  dev {result.dev:.2f}, test {result.test:.2f}, {result.active:,} active")
            compare(seed, options)
            write(results(options), options.folder, options)
    return failed
