"""Pictures of analyses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from torchtune_smt.analyses.overlap import Overlap
from torchtune_smt.core.pictures import picture


def draw_overlaps(
    pairs: Sequence[tuple[str, str, Sequence[Overlap]]], output: IO[bytes], form: str
) -> None:
    """Draw bars for each pair of sets and template: features of the first alone, of both, ...

    Parameters
    ----------
    pairs : sequence of (str, str, sequence of Overlap)
        The names of both sets, and what they have in common.
    output, form
        As for `torchtune_smt.core.pictures.picture`.
    """
    size = 8, 1 + 0.3 * sum(len(found) for *_, found in pairs) + 0.4 * len(pairs)
    options = {"figsize": size, "squeeze": False}
    with picture(output, form, len(pairs), 1, **options) as (_, axes):
        for axis, (first, second, found) in zip(axes.flat, pairs, strict=True):
            labels = [one.template for one in found]
            left = [0.0] * len(found)
            parts = {
                f"{first} alone": [one.first - one.both for one in found],
                "both": [one.both for one in found],
                f"{second} alone": [one.second - one.both for one in found],
            }
            for n, (label, counts) in enumerate(parts.items()):
                whole = [max(one.first + one.second - one.both, 1) for one in found]
                shares = [count / all for count, all in zip(counts, whole, strict=True)]
                bars = axis.barh(labels, shares, left=left, color=f"C{n}", label=label)
                axis.bar_label(bars, [f"{c:,}" if c else "" for c in counts], label_type="center")
                left = [sum(both) for both in zip(left, shares, strict=True)]
            axis.invert_yaxis()
            axis.set_xlabel("share of the features of either")
            axis.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1), fontsize="small")
