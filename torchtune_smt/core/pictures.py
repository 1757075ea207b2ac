"""Pictures, by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

FORMS: Final = ("png", "svg", "pdf")
"""What a picture may be; the end of its file's name."""


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

    Parameters
    ----------
    output : binary file
    form : {"png", "svg", "pdf"}
    rows, columns : int
        Of axes.
    caption : str
        Lines below them, such as what letters stand for.
    options
        Of `matplotlib.pyplot.subplots`.
    """
    # It takes long to import.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "torchtune_smt"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, layout="constrained", **options)
    if caption:
        figure.supxlabel(caption, x=0.01, ha="left", fontsize="small")
    try:
        yield figure, axes
        # The day is no result, and nothing is loaded from the addresses that matplotlib names.
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        figure.savefig(output, format=form, dpi=110, metadata=metadata)
    finally:
        plt.close(figure)
