"""Scores and comparisons as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torchtune_smt.evaluation.comparison import Comparison, SystemScore


@dataclass(frozen=True)
class Results:
    """What was found about some systems, for tables.

    Attributes
    ----------
    scores : dict of str to list of SystemScore
        The scores of each system, one a metric.
    comparisons : sequence of Comparison
        Of all systems but the baseline with it; none for one system.
    oracles : mapping of str to float
        Oracle BLEU (mean over the runs) of systems with k-best lists.
    median : mapping of str to str
        The median run of systems with several runs.
    """

    scores: Mapping[str, Sequence[SystemScore]]
    comparisons: Sequence[Comparison] = ()
    oracles: Mapping[str, float] = field(default_factory=dict)
    median: Mapping[str, str] = field(default_factory=dict)

    def lines(self, metric: int) -> list[tuple[str, SystemScore, Comparison | None, float | None]]:
        """Return what there is on a metric: for each system its score, test and oracle BLEU."""
        found = {(c.system, c.metric): c for c in self.comparisons}
        lines = []
        for system, scores in self.scores.items():
            score = scores[metric]
            oracle = self.oracles.get(system) if score.score.precisions else None
            lines.append((system, score, found.get((system, score.score.name)), oracle))
        return lines

    @property
    def metrics(self) -> int:
        """The number of metrics."""
        return len(next(iter(self.scores.values())))


def text(results: Results) -> str:
    """Return the scores of each system, and the comparisons below, as plain text."""
    lines = []
    for name, scores in results.scores.items():
        lines.append(name)
        lines += [f"  {score}" for score in scores]
        if name in results.oracles:
            lines.append(f"  oracle BLEU {results.oracles[name]:.2f}")
        if name in results.median:
            lines.append(f"  median run: {results.median[name]}")
    return "\n".join([*lines, *map(str, results.comparisons)]) + "\n"


def markdown(results: Results) -> str:
    """Return a table a metric."""

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    blocks = []
    for m in range(results.metrics):
        table = MetricTable.of(results, m)
        sides = ["---" if n == 0 else "---:" for n in range(len(table.head))]
        lines = [row(table.head), f"|{'|'.join(sides)}|", *map(row, table.rows)]
        blocks.append("\n".join(lines))
        blocks.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join([*blocks, *_medians(results)]) + "\n"


def latex(results: Results) -> str:
    """Return a ``tabular`` a metric, with rules of the package booktabs."""
    blocks = []
    for m in range(results.metrics):
        table = MetricTable.of(results, m)
        rows = [" & ".join(map(_latex, row)) + r" \\" for row in (table.head, *table.rows)]
        blocks.append(
            "\n".join(
                [
                    *(f"% {' '.join(note.split())}" for note in table.notes),
                    rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
                    r"\toprule",
                    rows[0],
                    r"\midrule",
                    *rows[1:],
                    r"\bottomrule",
                    r"\end{tabular}",
                ]
            )
        )
    return "\n\n".join(blocks) + "\n"


CSV_COLUMNS: Final = (
    "metric,system,runs,score,low,high,s_sel,s_opt,p,p_runs,"
    "brevity_penalty,precision_1,precision_2,precision_3,precision_4,oracle,signature"
).split(",")


def csv_text(results: Results) -> str:
    """Return all numbers unrounded: `CSV_COLUMNS`, a line for each metric and system."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for m in range(results.metrics):
        for system, found, comparison, oracle in results.lines(m):
            score = found.score
            runs = None if comparison is None else comparison.p_runs
            several = len(found.runs) > 1
            cells = [
                *(score.name, system, len(found.runs), score.score, found.low, found.high),
                *(found.s_sel, found.s_opt if several else None),
                None if comparison is None else comparison.p_value,
                None if runs is None else runs.value,
                score.brevity_penalty,
                *(score.precisions or [None] * 4),
                oracle,
                score.signature,
            ]
            writer.writerow(["" if cell is None else cell for cell in cells])
    return file.getvalue()


STYLES: Final[dict[str, Callable[[Results], str]]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
}


@dataclass(frozen=True)
class MetricTable:
    """The systems as one metric sees them, in cells of text.

    Attributes
    ----------
    head : list of str
    rows : list of list of str
    notes : list of str
        The signature of the metric, and what p is.
    """

    head: list[str]
    rows: list[list[str]]
    notes: list[str]

    @classmethod
    def of(cls, results: Results, metric: int) -> MetricTable:
        """Return the table of a metric, given by its number."""
        lines = results.lines(metric)
        first = lines[0][1].score
        several = any(len(found.runs) > 1 for _, found, _, _ in lines)
        tested = any(comparison is not None for _, _, comparison, _ in lines)
        oracles = any(oracle is not None for *_, oracle in lines)
        head = ["system", first.name, "95%"]
        if several:
            head[1:1] = ["runs"]
            head += ["s_sel", "s_opt"]
        if tested:
            head += ["p"]
            if several:
                head += ["p over runs"]
        if first.precisions:
            head += ["BP", "1-grams", "2-grams", "3-grams", "4-grams"]
        if oracles:
            head += ["oracle"]
        rows = []
        for system, found, comparison, oracle in lines:
            number = len(found.runs)
            row = [system, f"{found.score.score:.2f}", f"{found.low:.2f} to {found.high:.2f}"]
            if several:
                spread = f"{found.s_opt:.2f}" if number > 1 else ""
                row[1] += f" ± {spread}" if spread else ""
                row[1:1] = [str(number)]
                row += [f"{found.s_sel:.2f}", spread]
            if tested:
                row += ["" if comparison is None else f"{comparison.p_value:.4f}"]
                if several:
                    over = None if comparison is None else comparison.p_runs
                    row += ["" if over is None else f"{over.value:.4f}"]
            if first.precisions:
                row += [f"{found.score.brevity_penalty:.3f}"]
                row += [f"{precision:.1f}" for precision in found.score.precisions]
            if oracles:
                row += ["" if oracle is None else f"{oracle:.2f}"]
            rows.append(row)
        notes = [f"{first.name}: {first.signature}"]
        made = [comparison for _, _, comparison, _ in lines if comparison is not None]
        if made:
            ways = "; ".join(dict.fromkeys(comparison.test for comparison in made))
            notes.append(f"p: two-sided, against {made[0].baseline}; {ways}")
        return cls(head, rows, notes)


def _medians(results: Results) -> list[str]:
    if not results.median:
        return []
    return ["\n".join(f"- median run of {name}: {run}" for name, run in results.median.items())]


_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex(cell: str) -> str:
    """Return text that LaTeX prints as it is."""
    escaped = re.sub(r"[\\~^±&%$#_{}]", lambda found: _LATEX[found[0]], cell)
    return re.sub(r"\bp\b", "$p$", escaped) if cell in ("p", "p over runs") else escaped
