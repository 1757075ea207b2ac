"""A table of anything, as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

WIDTH: Final = 80
"""Columns of characters of a page of text; a wider table continues below itself."""

Cell = str | int | float | None
"""What stands in a table; None: nothing."""


@dataclass(frozen=True)
class Table:
    """A table of anything.

    Attributes
    ----------
    head : sequence of str
    rows : sequence of sequence of Cell
        Numbers are rounded to be read, and not in CSV.
    notes : sequence of str
        Below the table, a line each; not in CSV.
    left : int
        So many columns, the first ones, are of text; the others of numbers, flush right.
    before : str
        Lines above the table; not in CSV.
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
        return replace(self, rows=self.rows[:rows], notes=[*self.notes, said])

    def text(self) -> str:
        """Return the table with its columns flush, as plain text of `WIDTH` columns."""
        lines = [list(self.head), *self._shown]
        columns: list[list[str]] = []
        for n, cells in enumerate(zip(*lines, strict=True)):
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
        notes = [
            textwrap.fill(n, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            for n in self.notes
        ]
        return "\n\n".join(filter(None, [self.before, *tables, "\n".join(notes)])) + "\n"

    def markdown(self) -> str:
        """Return the table in Markdown."""
        before = f"```\n{self.before}\n```" if self.before else ""
        sides = ["---" if n < self.left else "---:" for n in range(len(self.head))]
        lines = [_row(self.head), f"|{'|'.join(sides)}|", *map(_row, self._shown)]
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(filter(None, [before, "\n".join(lines), notes])) + "\n"

    def latex(self) -> str:
        """Return a ``tabular`` with rules of the package booktabs; other lines are comments."""
        rows = [" & ".join(map(_latex, row)) + r" \\" for row in (self.head, *self._shown)]
        said = [*self.before.splitlines(), *(" ".join(note.split()) for note in self.notes)]
        sides = "l" * self.left + "r" * (len(self.head) - self.left)
        lines = [
            *(f"% {line}" for line in said),
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return head and rows, all numbers unrounded.

        An apostrophe stands before a text that a spreadsheet would take for a formula.
        """
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_csv(cell) for cell in row] for row in (self.head, *self.rows))
        return file.getvalue()

    @property
    def _shown(self) -> list[list[str]]:
        return [[_cell(cell) for cell in row] for row in self.rows]


def _cell(cell: Cell) -> str:
    """Return a cell as it is read."""
    if isinstance(cell, float):
        return f"{cell:,.1f}".removesuffix(".0") if abs(cell) >= 1000 else f"{cell:.4g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell or ""


def _csv(cell: Cell) -> str | int | float:
    """Return a cell that is no formula."""
    if isinstance(cell, str) and re.match(r"\s*[=+@-]", cell):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return "" if cell is None else cell


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
    """Return text that LaTeX prints as it is."""
    escaped = re.sub(r"[\\~^±∩|<>&%$#_{}]", lambda found: _LATEX[found[0]], cell)
    if cell in ("p", "p over runs"):
        return re.sub(r"\bp\b", "$p$", escaped)
    # Behind the end of a row a bracket would be an option of it.
    return f"{{}}{escaped}" if cell.startswith("[") else escaped
