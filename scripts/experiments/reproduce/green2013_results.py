"""What came out of the rows of Green et al. (2013): compared, and in tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import tables
from command_line import CORPORA
from green2013_rows import ON_DEV, ROWS, SEEDS, SETS, Options, place, rows_of
from published import merged_with_p, void
from tables import Section
from tuned import DEVTEST, SIGNIFICANCE, TEST, Corpus

from torchtune_smt.core.textio import atomic_path, atomic_writer

TITLE: Final = "Green et al. (2013), with tables of this project"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). p: of the difference from "
    "k-best MIRA with dense features, tuned on the same set with the same seed, or, for rows tuned "
    "on training data, on the small dev set; by approximate randomisation (10,000 trials). "
    "Active: weights that are not 0, dense ones among them. Reused: "
    "those of them that fire in a translation of test. Epochs (iterations, of batch tuners): the "
    "one with the best BLEU on dev, whose weights were kept, and all. s an epoch: seconds, with "
    "decoding and without the evaluation on dev; of batch tuners all of it. CPU minutes: of "
    "tuning.",
    "Training data is decoded with leave-one-out tables and language models of the other folds "
    "(`lm=folds`); which epoch is kept is decided on the small dev set. Multi30k has no larger dev "
    "set: rows of that are of Fisher alone, whose small one is a sample of it (1,000 sentences).",
    "Rows that were added later are compared with k-best MIRA of the same code and machine, "
    "`k-best MIRA, again`: lexicalised classes, PRO until it rests, and 30 epochs.",
)
# BLEU by time.
BY_TIME: Final = ("adagrad_pt_al_lo", "stale", "itermix")
# Of the picture of them.
PANELS_A_ROW: Final = 3
# What rows took that were done before.
CSV: Final = "own.csv"


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
    """Return the row that another one is compared with, or itself."""
    one, _, key = row.partition("/")
    return f"{one if one in ON_DEV else 'dev'}/{ROWS[key].baseline}"


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
    for note in (*NOTES, tables.READING):
        lines += [note, ""]
    sections = []
    for name, about in CORPORA.items():
        results = with_kept(results_of(options, name), output, name)
        if not results:
            continue
        sections.append(Section(name, about, list(results)))
        lines += [f"## {name}", "", about, "", *tables.header(sections[-1].results)]
        table = _table(results)
        bound = sum(tables.BIND in line for line in table)
        lines += [*table, "", f"The rounds bind in {bound} of {len(results)} rows.", ""]
        lines += [*_missing(name, results, options), ""]
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
    columns = [tables.p_column(results, one, baseline_of) for one in ("devtest", "test")]
    p_of = {id(r): cells for r, *cells in zip(results, *columns, strict=True)}
    for done in by_row.values():
        for r in done:
            p_devtest, p_test = p_of[id(r)]
            method = r.method + " §" * r.row.endswith("_tuned")
            cells = [_set(r), method, r.features, str(r.seed), f"{r.active:,}", f"{r.reused:,}"]
            cells += [f"{r.dev:.2f}", f"{r.devtest:.2f}", p_devtest, f"{r.test:.2f}", p_test]
            cells += [
                tables.rounds_cell(r.best, r.iterations, r.overrides),
                f"{mean(r.seconds):.1f}",
            ]
            lines.append(f"| {' | '.join([*cells, f'{r.cpu_minutes:.1f}'])} |")
        if len(done) > 1:
            bleu = {n: mean([getattr(r, n) for r in done]) for n in ("dev", "devtest", "test")}
            cells = [_set(done[0]), done[0].method, done[0].features, "mean"]
            cells += [f"{mean([r.active for r in done]):,.0f}", "", f"{bleu['dev']:.2f}"]
            cells += [f"{bleu['devtest']:.2f}", "", f"{bleu['test']:.2f}", "", ""]
            cells += [f"{mean([s for r in done for s in r.seconds]):.1f}"]
            cells += [f"{mean([r.cpu_minutes for r in done]):.1f}"]
            lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return lines


def _set(result: Result) -> str:
    return tables.tuning_set(result)


def mean(values: Sequence[float]) -> float:
    """Return the mean of some values, 0 of none."""
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
