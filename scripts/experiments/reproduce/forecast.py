"""CPU hours that rows will take, judged by those that were measured."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtune_smt.core.errors import InputError


@dataclass(frozen=True)
class Measured:
    """What an iteration of a row has taken.

    Attributes
    ----------
    cpu_minutes : float
        An iteration.
    training_sentences : int
        0 where none are tuned on.
    overrides : tuple of str
        Of train.py; none where the table does not have them.
    """

    cpu_minutes: float
    training_sentences: int
    overrides: tuple[str, ...] = ()


def read_measured(path: Path) -> dict[tuple[str, str], Measured]:
    """Return what rows of a published table.csv took, by corpus and row.

    Raises
    ------
    InputError
        The file is another kind of table.
    """
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        needed = {"corpus", "row", "iterations", "cpu_minutes", "training_sentences"}
        missing = sorted(needed.difference(lines.fieldnames or ()))
        if missing:
            raise InputError(
                f"{path}: has no column {missing[0]}; name a table that a script of "
                "scripts/experiments/reproduce has written"
            )
        for line in lines:
            iterations = max(int(line["iterations"]), 1)
            found[line["corpus"], line["row"]] = Measured(
                float(line["cpu_minutes"]) / iterations,
                int(line["training_sentences"]),
                tuple(line.get("overrides", "").split()),
            )
    return found


def hours(
    measured: Mapping[tuple[str, str], Measured],
    corpus: str,
    row: str,
    training_sentences: int,
    iterations: int,
    dev_minutes: tuple[float, float] = (0.0, 0.0),
) -> float | None:
    """Return the CPU hours of a row at most; None if nothing like it was measured.

    The time of rows that tune on training sentences is taken to grow with their number, but for
    what is known to be spent on dev.

    Parameters
    ----------
    row : str
        The row whose time is taken, which may be another one.
    training_sentences : int
        That are tuned on; without meaning for rows that tune on dev.
    iterations : int
        Of the row, and of all values that are swept.
    dev_minutes : (float, float)
        CPU minutes that an iteration spends on dev: of the row that was measured, and of this one.
    """
    known = measured.get((corpus, row))
    if known is None:
        return None
    before, now = dev_minutes
    share = training_sentences / known.training_sentences if known.training_sentences else 1.0
    minutes = max(known.cpu_minutes - before, 0.0) * max(share, 1.0) + now
    return minutes * iterations / 60.0


def print_hours(rows: Iterable[tuple[str, bool, float | None]], path: Path | str) -> None:
    """Print the CPU hours of rows, and their sum.

    Parameters
    ----------
    rows
        What each is called, whether it is done, and otherwise its `hours`.
    path : path or str
        The table that they are judged by.
    """
    total, unknown = 0.0, 0
    for said, done, found in rows:
        if done:
            print(f"{said}: done")
            continue
        print(f"{said}: " + ("not known" if found is None else f"{found:.2f} CPU hours"))
        total += found or 0.0
        unknown += found is None
    more = f", and {unknown} runs of which nothing is known" if unknown else ""
    print(f"{total:.2f} CPU hours at most, judged by {path}{more}")
