"""Scores and comparisons as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torchtune_smt.evaluation.comparison import Comparison, SystemScore, said_p
from torchtune_smt.evaluation.table import Cell, Table


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


def aligned(results: Results) -> str:
    """Return flush tables without details; letters stand for names, which may be long."""
    letters = [*results.scores]
    key = {name: chr(65 + n) if n < 26 else str(n + 1) for n, name in enumerate(letters)}
    legend: list[str] = []
    blocks: list[str] = []
    notes: list[str] = []
    for name, letter in key.items():
        median = f" (median run: {results.median[name]})" if name in results.median else ""
        legend.append(f"{letter}: {name}{median}")
    for m in range(results.metrics):
        table = metric_table(results, m)
        shown = [n for n, head in enumerate(table.head) if head not in _DETAILS]
        rows: list[list[Cell]] = [
            [key[str(row[0])], *(row[n] for n in shown[1:])] for row in table.rows
        ]
        blocks.append(Table([table.head[n] for n in shown], rows).text())
        notes += table.notes
    said = [note.replace(f"against {letters[0]};", "against A;") for note in dict.fromkeys(notes)]
    return "\n".join([Table([], [], legend).text(), *blocks, Table([], [], said).text()])


def markdown(results: Results) -> str:
    """Return a table a metric."""
    blocks = [metric_table(results, m).markdown() for m in range(results.metrics)]
    medians = [f"- median run of {name}: {run}\n" for name, run in results.median.items()]
    return "\n".join([*blocks, *(["".join(medians)] if medians else [])])


def latex(results: Results) -> str:
    """Return a ``tabular`` a metric, with rules of the package booktabs."""
    blocks = [metric_table(results, m).latex() for m in range(results.metrics)]
    medians = [f"% median run of {name}: {run}\n" for name, run in results.median.items()]
    return "\n".join([*blocks, *(["".join(medians)] if medians else [])])


# In the other forms.
_DETAILS: Final = {"BP", "1-grams", "2-grams", "3-grams", "4-grams", "s_sel"}

CSV_COLUMNS: Final = (
    "metric,system,runs,score,low,high,s_sel,s_opt,p_runs,p,"
    "brevity_penalty,precision_1,precision_2,precision_3,precision_4,oracle,signature"
).split(",")


def csv_text(results: Results) -> str:
    """Return all numbers unrounded: `CSV_COLUMNS`, a line for each metric and system."""
    rows: list[list[Cell]] = []
    for m in range(results.metrics):
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
                    oracle,
                    score.signature,
                ]
            )
    return Table(CSV_COLUMNS, rows).csv()


STYLES: Final[dict[str, Callable[[Results], str]]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
}


def metric_table(results: Results, metric: int) -> Table:
    """Return the systems as one metric, given by its number, sees them, in cells of text.

    The notes are the signature of the metric, and what p is.
    """
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
        head += ["p over runs", "p"] if several else ["p"]
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
            if several:
                over = None if comparison is None else comparison.p_runs
                row += ["" if over is None else said_p(over.value)]
            row += ["" if comparison is None else said_p(comparison.p_value)]
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
    return Table(head, rows, notes)
