"""Results of rows, and what is written of them: a table in Markdown, one in CSV, and a plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_path, atomic_writer
from torchtune_smt.evaluation.significance import SAMPLES, SEED, runs_test

RESULT = "result.json"
SIGNIFICANT = 0.05
NOT_COMPARED = "not compared"
# Rounds of tuning where the overrides do not say: of batch tuners, and of the online one.
ITERATIONS, EPOCHS = 15, 8
BIND = ", bind"
READING = (
    "Beside each p, in parentheses, Holm's correction for all p of the column; each is bold below "
    f"{SIGNIFICANT}. `bind`: the best round is the last that was allowed, so that more might have "
    "been better; × 60: each round decodes dev up to 60 times, and those of other rows once. ‡: of "
    "the set on which an option of the row was chosen; §: a row whose metric was chosen with "
    "scores of Multi30k's test set in view."
)


@dataclass
class Stored:
    """What is kept in a row's folder."""

    def save(self, folder: Path) -> None:
        """Write the result to the row's folder."""
        with atomic_writer(folder / RESULT) as file:
            json.dump(asdict(self), file, indent=1)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the result in a row's folder; None if there is none.

        Raises
        ------
        InputError
            The file is damaged, or of another version.
        """
        path = folder / RESULT
        if not path.is_file():
            return None
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise InputError(f"is no result of a row ({error}); remove it", path=path) from None


@dataclass
class Result(Stored):
    """What came out of a row on a corpus.

    Attributes
    ----------
    row, corpus : str
    method, tuning_set, features, language_models : str
        The row's place in the table; `language_models` are those that training data is decoded
        with, empty where none is.
    training_sentences : int
        Sentences of the training data that were tuned on.
    active, reused, atomic : int
        Features (groups) with a weight; those that fire on test; single features with a weight.
    iterations : int
        Of the tuner, until it stopped.
    best : int
        The one whose weights were kept.
    dev, devtest, test : float
        BLEU.
    p_devtest, p_test : float, optional
        Of the difference from the baseline.
    significance : str
        The test that computed them, or why none did.
    compared : list of float
        BLEU of the baseline on devtest and test when they were computed.
    minutes, cpu_minutes : float
        Of tuning, in wall-clock time and on processors.
    chosen : str
        The options that may be chosen on devtest, and their values, as overrides with blanks
        between them; empty: there are none.
    points : list of dict
        The values it was chosen from, with ``option``, ``dev``, ``devtest``, ``active``,
        ``minutes`` and ``cpu_minutes``.
    begin, end : str
        Dates.
    command : str
        That did the row.
    overrides : list of str
        Of train.py.
    versions : dict of str to str
    """

    row: str
    corpus: str
    method: str
    tuning_set: str
    features: str
    language_models: str
    training_sentences: int
    active: int
    reused: int
    atomic: int
    iterations: int
    best: int
    dev: float
    devtest: float
    test: float
    minutes: float
    cpu_minutes: float
    begin: str
    end: str
    command: str
    seed: int
    overrides: list[str]
    versions: dict[str, str]
    p_devtest: float | None = None
    p_test: float | None = None
    significance: str = ""
    compared: list[float] = field(default_factory=list)
    chosen: str = ""
    points: list[dict[str, Any]] = field(default_factory=list)


class Published(NamedTuple):
    """A row as the paper has it."""

    active: int
    reused: int
    devtest: float
    test: float
    minutes: int


class Group(NamedTuple):
    """Results that differ in nothing but the seed.

    Attributes
    ----------
    label : str
        Options that tell it apart from others of the table, in words; empty where none do.
    results, baseline : sequence of Result
        Its own, and those of the baseline that they may be compared with; none: there are none.
    """

    label: str
    results: Sequence[Result]
    baseline: Sequence[Result]


class Section(NamedTuple):
    """The rows of one corpus.

    Attributes
    ----------
    corpus : str
    about : str
        What the corpus is, in words.
    results : sequence of Result
        In the order of the table.
    more : sequence of str
        Lines behind it.
    """

    corpus: str
    about: str
    results: Sequence[Result]
    more: Sequence[str] = ()


def markdown(
    title: str,
    notes: Sequence[str],
    sections: Sequence[Section],
    published: Mapping[str, Published],
    baseline: str,
) -> str:
    """Return the tables as Markdown.

    Parameters
    ----------
    title : str
    notes : sequence of str
        What is said before the tables, a paragraph each.
    sections : sequence of Section
    published : mapping of str to Published
        The paper's figures, by row.
    baseline : str
        The row that others are compared with.
    """
    lines = [f"# {title}", ""]
    for note in notes:
        lines += [note, ""]
    for section in sections:
        lines += [f"## {section.corpus}", "", section.about, ""]
        lines += header(section.results)
        lines += _main_table(section.results, baseline)
        lines += _points(section.results)
        lines += section.more
    lines += ["## The paper's figures", "", *_published_table(sections, published)]
    return "\n".join(lines).rstrip("\n") + "\n"


def header(results: Sequence[Result]) -> list[str]:
    """Return what was run, and when, as lines of Markdown."""
    commands = dict.fromkeys(result.command for result in results)
    versions: dict[str, list[str]] = {}
    for result in results:
        for name, version in result.versions.items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)
    seeds = sorted({result.seed for result in results})
    begin, end = min(r.begin for r in results), max(r.end for r in results)
    when = begin if begin == end else f"{begin} to {end}"
    return [
        *[f"    {command}" for command in commands],
        "",
        f"Run on {when}; seed {', '.join(map(str, seeds))}; "
        + ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items())
        + ".",
        "",
    ]


def _main_table(results: Sequence[Result], baseline: str) -> list[str]:
    lines = [
        "| method | tuning set | features | language models | active | reused | BLEU devtest | p "
        "| BLEU test | p | iterations | minutes | CPU minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    cells_of = [p_column(results, one, lambda _: baseline) for one in ("devtest", "test")]
    for r, p_devtest, p_test in zip(results, *cells_of, strict=True):
        method = r.method
        if r.chosen:
            options = (option.partition(".")[2] for option in r.chosen.split())
            method += f", `{' '.join(options)}`"
        active = f"{r.active:,}"
        if r.atomic != r.active:
            active += f" groups of {r.atomic:,} features"
        cells = [
            method,
            tuning_set(r),
            r.features,
            r.language_models,
            active,
            f"{r.reused:,}",
            f"{r.devtest:.2f}",
            p_devtest + " ‡" * (r.chosen != "" and r.p_devtest is not None),
            f"{r.test:.2f}",
            p_test,
            rounds_cell(r.best, r.iterations, r.overrides),
            f"{r.minutes:.1f}",
            f"{r.cpu_minutes:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return [*lines, ""]


def over_seeds(groups: Sequence[Group], baseline: str) -> list[str]:
    """Return the means of results that have several seeds, as lines of Markdown; none without any.

    p is that of the difference of two ways to tune from the baseline's, over runs
    (`torchtune_smt.evaluation.significance.runs_test`); `NOT_COMPARED` where the baseline has no
    several seeds with the same options.

    Parameters
    ----------
    groups : sequence of Group
    baseline : str
        The row that others are compared with.
    """
    several = [group for group in groups if len(group.results) > 1]
    if not several:
        return []
    sizes = several_sizes([result for group in groups for result in group.results])
    lines = [
        "Mean and standard deviation over seeds; p: of the difference of the means from the "
        "baseline's, by exchanging runs:",
        "",
        "| row | seeds | BLEU dev | BLEU devtest | p | BLEU test | p |",
        "|---|---|---|---|---|---|---|",
    ]

    def p_of(group: Group, one: str) -> float | str:
        if group.results[0].row == baseline:
            return "baseline"
        return p_over_seeds(group, one) if len(group.baseline) > 1 else NOT_COMPARED

    columns = [p_cells([p_of(group, one) for group in several]) for one in ("devtest", "test")]
    for group, p_devtest, p_test in zip(several, *columns, strict=True):
        called = ", ".join(filter(None, (name(group.results[0], sizes), group.label)))
        dev, devtest, test = (
            spread_cell([getattr(result, one) for result in group.results])
            for one in ("dev", "devtest", "test")
        )
        cells = [called, ", ".join(str(result.seed) for result in group.results)]
        cells += [dev, devtest, p_devtest, test, p_test]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return [*lines, ""]


def p_over_seeds(group: Group, name: str) -> float:
    """Return p of the difference of results on devtest or test from the baseline's, over runs.

    Parameters
    ----------
    group : Group
        With at least two seeds of both.
    """
    own, theirs = (
        np.array([getattr(result, name) for result in results])
        for results in (group.results, group.baseline)
    )
    return runs_test(theirs, own, SAMPLES, SEED).value


def spread_cell(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of at least two values as a cell of a table."""
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def tuning_set(result: Result) -> str:
    """Return what was tuned on, with the number of training sentences."""
    if not result.training_sentences:
        return result.tuning_set
    number = f"{result.training_sentences:,}"
    return result.tuning_set.replace("train", f"train ({number} sentences)")


def rounds_cell(best: int, rounds: int, overrides: Sequence[str]) -> str:
    """Return the best round and all of them, and whether more were not allowed (`READING`)."""
    given = [o for o in overrides if o.startswith(("tuner.iterations=", "tuner.epochs="))]
    most = ITERATIONS if any(o.startswith("tuner=") for o in overrides) else EPOCHS
    if given:
        most = int(given[-1].partition("=")[2])
    on_dev = [o.partition("=")[2] for o in overrides if o.startswith("tuner.dev.iterations=")]
    often = f" × {on_dev[-1]}" if on_dev else ""
    return f"{best} of {rounds}{often}{BIND if best == most else ''}"


def p_column(results: Sequence[Result], name: str, baseline_of: Callable[[str], str]) -> list[str]:
    """Return the p-values of results on devtest or test as a column of a table, see `p_cells`."""
    column: list[float | str] = []
    for result in results:
        p = getattr(result, f"p_{name}")
        said = "baseline" if result.row == baseline_of(result.row) else result.significance
        column.append(said if p is None else p)
    return p_cells(column)


def p_cells(column: Sequence[float | str]) -> list[str]:
    """Return a column of a table: words as they are, and p-values beside their `holm`."""
    values = [p for p in column if not isinstance(p, str)]
    corrected = iter(holm(values))
    return [p if isinstance(p, str) else f"{bold_p(p)} ({bold_p(next(corrected))})" for p in column]


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for how many there are (Holm 1979), in the same order."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.maximum.accumulate(np.sort(values) * np.arange(len(values), 0, -1))
    return [min(float(p), 1.0) for p in found]


def bold_p(p: float) -> str:
    """Return a p-value as `said_p` does, bold where it is significant."""
    return f"**{said_p(p)}**" if p < SIGNIFICANT else said_p(p)


def said_p(p: float) -> str:
    """Return a p-value in three digits, more where it would look like 0, or like `SIGNIFICANT`."""
    said = f"{p:.3f}"
    if float(said) == 0.0 and p > 0.0:
        said = "< 0.001"
    elif (float(said) < SIGNIFICANT) != (p < SIGNIFICANT):
        said = f"{p:.5f}"
    return said


def _points(results: Sequence[Result]) -> list[str]:
    """Return the values that an option was chosen from."""
    swept = [result for result in results if result.points]
    sizes = several_sizes(results)
    if not swept:
        return []
    lines = [
        "Values that were tried, each with a run of its own (of no more iterations than "
        "`--sweep-iterations` says, where it is given); the best on devtest was taken:",
        "",
        "| row | value | BLEU dev | BLEU devtest | active features | minutes | CPU minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in swept:
        ends = _ends([point["option"] for point in result.points])
        for point in result.points:
            taken = ""
            if point["option"] in result.chosen.split():
                taken = " * (end)" if point["option"] in ends else " *"
            lines.append(
                f"| {name(result, sizes)} | `{point['option']}`{taken} "
                f"| {point['dev']:.2f} | {point['devtest']:.2f} | {point['active']:,} "
                f"| {point['minutes']:.1f} | {point['cpu_minutes']:.1f} |"
            )
    note = (
        "\\* taken; (end): the smallest or the largest value that was tried, beyond which a better "
        "one may be"
    )
    return [*lines, "", note, ""]


def _ends(tried: Iterable[str]) -> set[str]:
    """Return the smallest and the largest value of each option of which several were tried."""
    values: dict[str, list[str]] = {}
    for option in tried:
        values.setdefault(option.partition("=")[0], []).append(option)
    several = (options for options in values.values() if len(options) > 1)
    return {
        end(options, key=lambda option: float(option.partition("=")[2]))
        for options in several
        for end in (min, max)
    }


def _published_table(sections: Sequence[Section], published: Mapping[str, Published]) -> list[str]:
    """Return the paper's rows, and how far each row is from the paper's baseline and from ours."""
    lines = [
        "| row | active | reused | BLEU devtest | BLEU test | minutes |",
        "|---|---|---|---|---|---|",
    ]
    names: dict[str, str] = {}
    for result in (result for section in sections for result in section.results):
        names.setdefault(result.row, name(result))
    for row, p in published.items():
        if row in names:
            lines.append(
                f"| {names[row]} | {p.active:,} | {p.reused:,} | {p.devtest:.1f} | {p.test:.1f} "
                f"| {p.minutes:,} |"
            )
    return lines


def name(result: Result, sizes: bool = False) -> str:
    """Return a row's name in one line, with the number of training sentences if `sizes`."""
    parts = [result.method, tuning_set(result) if sizes else result.tuning_set, result.features]
    if result.language_models:
        parts.append(f"lm={result.language_models}")
    return " ".join(part for part in parts if part)


def several_sizes(results: Sequence[Result]) -> bool:
    """Return whether a row is there with more than one number of training sentences."""
    rows = {(result.row, result.training_sentences) for result in results}
    return len(rows) > len({row for row, _ in rows})


def write_csv(path: Path, sections: Sequence[Section]) -> None:
    """Write all that is known of the rows, a line each; `published.read_results` reads it."""
    kind = type(sections[0].results[0])
    columns = [f.name for f in fields(kind) if f.name != "compared"]
    with atomic_writer(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for section in sections:
            for result in section.results:
                values = asdict(result)
                values["overrides"] = " ".join(result.overrides)
                writer.writerow([_cell(values[c]) for c in columns])


def _cell(value: Any) -> Any:
    """Return a value as a line of the file has it."""
    if isinstance(value, list | dict):
        return json.dumps(value) if value else ""
    return "" if value is None else value


def plot(path: Path, sections: Sequence[Section]) -> None:
    """Draw BLEU on test against the number of active features, a panel a corpus."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(sections), figsize=(5.6 * len(sections), 4.6), layout="constrained", squeeze=False
    )
    # A row looks the same in all panels.
    rows = list(dict.fromkeys(name(result) for section in sections for result in section.results))
    for section, axis in zip(sections, axes[0], strict=True):
        sizes = several_sizes(section.results)
        most = max(result.training_sentences for result in section.results)
        for result in section.results:
            r = rows.index(name(result))
            axis.plot(
                [max(result.active, 1)],
                [result.test],
                linestyle="",
                # Seven forms and ten colours are 70 pairs.
                marker="os^DvPX"[r % 7],
                markerfacecolor="none" if result.language_models == "full" else None,
                color=f"C{r % 10}",
                # Smaller where it has less training data.
                markersize=4 if sizes and 0 < result.training_sentences < most else 6,
                label=name(result, sizes),
            )
        axis.set_xscale("log")
        axis.set_xlabel("active features (groups, for OSCAR)")
        axis.set_ylabel("BLEU on test")
        axis.set_title(section.corpus, fontsize="medium")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)
