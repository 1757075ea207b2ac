"""Pictures, by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from torchtune_smt.core.textio import atomic_path

FORMS: Final = ("png", "svg", "pdf")
"""What a picture may be; the end of its file's name."""

Canvas = Callable[..., AbstractContextManager[tuple[Any, Any]]]
"""`picture` of some file: takes rows, columns and options, and gives a figure and its axes."""


@contextmanager
def picture(
    output: IO[bytes],
    form: str,
    rows: int = 1,
    columns: int = 1,
    *,
    caption: str = "",
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Give a figure and its axes to draw on, and write it; the same drawing gives the same bytes.

    All text stands there as it is: ``$`` begins no formula.

    form ("png", "svg", "pdf")
    rows, columns: of axes, with the caption below.
    options: of `matplotlib.pyplot.subplots`.
    """
    # It takes long to import.
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": "torchtune_smt", "text.parse_math": False}):
        figure, axes = plt.subplots(rows, columns, layout="constrained", **options)
        if caption:
            figure.supxlabel(caption, x=0.01, ha="left", fontsize="small")
        try:
            yield figure, axes
            _write_powers_out(figure)
            # The day is no result, and nothing is loaded from the addresses that matplotlib names.
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
            figure.savefig(output, format=form, dpi=110, metadata=metadata)
        finally:
            plt.close(figure)


def write_picture(path: Path, draw: Callable[[Canvas], None], caption: str = "") -> None:
    """Write a picture to a file, whose name ends in one of `FORMS`, whole or not at all."""
    with atomic_path(path) as beside, beside.open("wb") as file:
        draw(partial(picture, file, path.suffix[1:], caption=caption))


def add_legend(owner: Any, entries: Sequence[tuple[str, Any]], **options: Any) -> None:
    """Give axes or a figure a legend, with any text: matplotlib leaves out what begins with ``_``.

    entries: what something is called, and what was drawn for it.
    options: of `matplotlib.axes.Axes.legend`.
    """
    numbers = [str(n) for n in range(len(entries))]
    legend = owner.legend([artist for _, artist in entries], numbers, **options)
    for text, (name, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(name)


def _write_powers_out(figure: Any) -> None:
    """Let logarithmic axes have numbers where matplotlib has formulas."""
    from matplotlib.ticker import LogFormatter

    class Number(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            # It says which ticks have room for a number.
            return f"{x:,.10g}" if super().__call__(x, pos) else ""

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter(Number())
                axis.set_minor_formatter(Number())
