"""Tables, of anything and of the scores of systems: as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from torchtune_smt.core.errors import InputError
from torchtune_smt.evaluation.oracle import oracle_bleu
from torchtune_smt.evaluation.significance import Comparison, Evaluation, SystemScore, said_p
from torchtune_smt.runs.outputs import Output, Outputs

WIDTH: Final = 80
"""Columns of characters of a page of text; a wider table continues below itself."""

Cell = str | int | float | None
"""What stands in a table; None: nothing."""


class Table(NamedTuple):
    """A table of anything.

    rows: numbers are rounded to be read, and not in CSV.
    notes: below the table, a line each; not in CSV.
    left: so many columns, the first ones, are of text; the others of numbers, flush right.
    before: lines above the table; not in CSV.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    left: int = 1
    before: str = ""

    def shortened(self, rows: int | None) -> Table:
        """Return the table with so many rows at most; a note says how many there are."""
        if rows is None or len(self.rows) <= rows:
            return self
        said = f"the first {rows:,} of {len(self.rows):,} rows"
        return self._replace(rows=self.rows[:rows], notes=[*self.notes, said])

    def text(self) -> str:
        """Return the table with its columns flush, as plain text of `WIDTH` columns."""
        columns: list[list[str]] = []
        for n, cells in enumerate(zip(*self.shown(), strict=True)):
            width = max(map(len, cells))
            columns.append([c.ljust(width) if n < self.left else c.rjust(width) for c in cells])
        left, pages = columns[: self.left], [columns[: self.left]]
        for column in columns[self.left :]:
            full = sum(len(other[0]) + 2 for other in pages[-1]) + len(column[0]) > WIDTH
            if full and len(pages[-1]) > len(left):
                pages.append([*left])
            pages[-1].append(column)
        tables = [
            "\n".join("  ".join(line).rstrip() for line in zip(*page, strict=True))
            for page in pages
        ]
        return "\n\n".join(filter(None, [self.before, *tables, folded(self.notes)])) + "\n"

    def markdown(self) -> str:
        """Return the table in Markdown."""
        before = f"```\n{self.before}\n```" if self.before else ""
        sides = ["---" if n < self.left else "---:" for n in range(len(self.head))]
        head, *rows = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
            for row in self.shown()
        )
        table = "\n".join([head, f"|{'|'.join(sides)}|", *rows])
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(filter(None, [before, table, notes])) + "\n"

    def latex(self) -> str:
        """Return a ``tabular`` with rules of the package booktabs; other lines are comments."""
        head, *rows = (" & ".join(map(_latex, row)) + r" \\" for row in self.shown())
        said = [*self.before.splitlines(), *(" ".join(note.split()) for note in self.notes)]
        sides = "l" * self.left + "r" * (len(self.head) - self.left)
        begin = [*(f"% {line}" for line in said), rf"\begin{{tabular}}{{{sides}}}", r"\toprule"]
        end = [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*begin, head, r"\midrule", *rows, *end]) + "\n"

    def csv(self) -> str:
        """Return head and rows, all numbers unrounded; an apostrophe keeps formulas texts."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_csv(cell) for cell in row] for row in (self.head, *self.rows))
        return file.getvalue()

    def shown(self) -> list[list[str]]:
        """Return the head and the rows as they are read."""
        return [[*self.head], *([_cell(cell) for cell in row] for row in self.rows)]


def folded(lines: Iterable[str]) -> str:
    """Return lines that are no longer than `WIDTH`, as far as their words allow it."""
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_on_hyphens=False,
        )
        for line in lines
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:,.1f}".removesuffix(".0") if abs(cell) >= 1000 else f"{cell:.4g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell or ""


def _csv(cell: Cell) -> str | int | float:
    if isinstance(cell, str) and re.match(r"\s*[=+@-]", cell):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return "" if cell is None else cell


_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "∩": r"$\cap$",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex(cell: str) -> str:
    escaped = re.sub(r"[\\~^±∩|<>&%$#_{}]", lambda found: _LATEX[found[0]], cell)
    if cell in ("p", "p over runs"):
        return re.sub(r"\bp\b", "$p$", escaped)
    # Behind the end of a row a bracket would be an option of it.
    return f"{{}}{escaped}" if cell.startswith("[") else escaped


class Results(NamedTuple):
    """What was found about some systems.

    scores: the scores of each system, one a metric.
    comparisons: of all systems but the baseline with it; none for one system.
    oracles: oracle BLEU (mean over the runs) of systems with k-best lists.
    median: the median run of systems with several runs.
    """

    scores: Mapping[str, Sequence[SystemScore]]
    comparisons: Sequence[Comparison] = ()
    oracles: Mapping[str, float] = {}
    median: Mapping[str, str] = {}

    @classmethod
    def of(
        cls,
        systems: Mapping[str, Sequence[Output]],
        outputs: Outputs,
        metrics: Sequence[str | Mapping[str, float]],
        test: Mapping[str, Any],
        sampling: Mapping[str, Any],
        text: Mapping[str, Any],
    ) -> Results:
        """Return the scores of systems, and how they compare with a baseline.

        test, sampling, text: arguments of `Evaluation.compare`, of it and of `Evaluation.scores`,
            and of `Evaluation`.
        """

        def oracle(output: Output) -> float:
            return oracle_bleu(outputs.lists[output], outputs.references, **text).score

        try:
            evaluation = Evaluation(
                {name: [outputs.translations[o] for o in found] for name, found in systems.items()},
                outputs.references,
                metrics,
                **text,
            )
            return cls(
                evaluation.scores(**sampling),
                evaluation.compare(**test, **sampling) if len(systems) > 1 else [],
                {
                    name: float(np.mean([oracle(output) for output in found]))
                    for name, found in systems.items()
                    if all(o in outputs.lists for o in found)
                },
                {
                    name: str(found[evaluation.median_run(name)].path)
                    for name, found in systems.items()
                    if len(found) > 1
                },
            )
        except InputError:
            raise
        except ValueError as error:
            raise InputError(str(error)) from None

    def lines(self, metric: int) -> list[tuple[str, SystemScore, Comparison | None, float | None]]:
        """Return the score, test and oracle BLEU of each system by a metric."""
        found = {(c.system, c.metric): c for c in self.comparisons}
        lines = []
        for system, scores in self.scores.items():
            score = scores[metric]
            oracle = self.oracles.get(system) if score.score.precisions else None
            lines.append((system, score, found.get((system, score.score.name)), oracle))
        return lines

    @property
    def metrics(self) -> range:
        """The numbers of the metrics."""
        return range(len(next(iter(self.scores.values()))))

    def tables(self) -> list[Table]:
        """Return a table a metric, in cells of text, with its signature and what p is."""
        return [_metric_table(self.lines(metric)) for metric in self.metrics]


def text_lines(results: Results) -> list[str]:
    """Return the scores of each system, and the comparisons below, as plain text."""
    lines = []
    for name, scores in results.scores.items():
        lines.append(name)
        lines += [f"  {score}" for score in scores]
        if name in results.oracles:
            lines.append(f"  oracle BLEU {results.oracles[name]:.2f}")
        if name in results.median:
            lines.append(f"  median run: {results.median[name]}")
    return [*lines, *map(str, results.comparisons)]


def aligned(results: Results) -> str:
    """Return flush tables without details; letters stand for names, which may be long."""
    names = [*results.scores]
    key = {name: chr(65 + n) if n < 26 else str(n + 1) for n, name in enumerate(names)}
    medians = {name: f" (median run: {run})" for name, run in results.median.items()}
    legend = [f"{letter}: {name}{medians.get(name, '')}" for name, letter in key.items()]
    blocks: list[str] = []
    notes: list[str] = []
    for table in results.tables():
        shown = [n for n, head in enumerate(table.head) if head not in _DETAILS]
        rows: list[list[Cell]] = [
            [key[str(row[0])], *(row[n] for n in shown[1:])] for row in table.rows
        ]
        blocks.append(Table([table.head[n] for n in shown], rows).text())
        notes += table.notes
    said = [note.replace(f"against {names[0]};", "against A;") for note in dict.fromkeys(notes)]
    return "\n".join([f"{folded(legend)}\n", *blocks, f"{folded(said)}\n"])


def blocks(results: Results, form: Callable[[Table], str], sign: str) -> str:
    """Return a table a metric in a form whose other lines begin with a sign."""
    medians = [f"{sign} median run of {name}: {run}\n" for name, run in results.median.items()]
    return "\n".join(filter(None, [*map(form, results.tables()), "".join(medians)]))


# In the other forms.
_DETAILS: Final = {"BP", "1-grams", "2-grams", "3-grams", "4-grams", "s_sel"}

CSV_COLUMNS: Final = (
    "metric,system,runs,score,low,high,s_sel,s_opt,p_runs,p,"
    "brevity_penalty,precision_1,precision_2,precision_3,precision_4,oracle,signature"
).split(",")


def csv_text(results: Results) -> str:
    """Return all numbers unrounded: `CSV_COLUMNS`, a line for each metric and system."""
    rows: list[list[Cell]] = []
    for m in results.metrics:
        for system, found, comparison, oracle in results.lines(m):
            score = found.score
            runs = None if comparison is None else comparison.p_runs
            several = len(found.runs) > 1
            rows.append(
                [
                    *(score.name, system, len(found.runs), score.score, found.low, found.high),
                    *(found.s_sel, found.s_opt if several else None),
                    None if runs is None else runs.value,
                    None if comparison is None else comparison.p_value,
                    score.brevity_penalty,
                    *(score.precisions or [None] * 4),
                    *(oracle, score.signature),
                ]
            )
    return Table(CSV_COLUMNS, rows).csv()


STYLES: Final[dict[str, Callable[[Results], str]]] = {
    "text": lambda results: "\n".join(text_lines(results)) + "\n",
    # In lines of a terminal.
    "folded": lambda results: folded(text_lines(results)) + "\n",
    "screen": aligned,
    "markdown": lambda results: blocks(results, Table.markdown, "-"),
    "latex": lambda results: blocks(results, Table.latex, "%"),
    "csv": csv_text,
}


def _metric_table(
    lines: Sequence[tuple[str, SystemScore, Comparison | None, float | None]],
) -> Table:
    first = lines[0][1].score
    made = [comparison for _, _, comparison, _ in lines if comparison is not None]
    several = any(len(found.runs) > 1 for _, found, _, _ in lines)
    oracles = any(oracle is not None for *_, oracle in lines)
    columns: dict[str, list[str]] = {"system": [], "runs": [], first.name: [], "95%": []}
    for system, found, comparison, oracle in lines:
        score = found.score
        spread = f"{found.s_opt:.2f}" if len(found.runs) > 1 else ""
        over = None if comparison is None else comparison.p_runs
        row = {
            "system": system,
            "runs": str(len(found.runs)),
            first.name: f"{score.score:.2f}" + (f" ± {spread}" if spread else ""),
            "95%": f"{found.low:.2f} to {found.high:.2f}",
            "s_sel": f"{found.s_sel:.2f}",
            "s_opt": spread,
            "p over runs": "" if over is None else said_p(over.value),
            "p": "" if comparison is None else said_p(comparison.p_value),
            "BP": "" if score.brevity_penalty is None else f"{score.brevity_penalty:.3f}",
            **{f"{n}-grams": f"{p:.1f}" for n, p in enumerate(score.precisions, start=1)},
            "oracle": "" if oracle is None else f"{oracle:.2f}",
        }
        for name, cell in row.items():
            columns.setdefault(name, []).append(cell)
    left_out = set() if several else {"runs", "s_sel", "s_opt", "p over runs"}
    left_out |= set() if made else {"p over runs", "p"}
    left_out |= (set() if first.precisions else {"BP"}) | (set() if oracles else {"oracle"})
    shown = {name: column for name, column in columns.items() if name not in left_out}
    notes = [f"{first.name}: {first.signature}"]
    if made:
        ways = "; ".join(dict.fromkeys(comparison.test for comparison in made))
        notes.append(f"p: two-sided, against {made[0].baseline}; {ways}")
    return Table(list(shown), list(zip(*shown.values(), strict=True)), notes)
