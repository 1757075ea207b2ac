"""Which weights a decoder has features for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtune_smt.core.arrays import Bool
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.base import Decoder


def features_in_use(
    path: str, names: Vocabulary, decoder: Decoder, report: Callable[[str], None]
) -> Bool:
    """Return which features of a weights file, bool [names], a decoder may give.

    Parameters
    ----------
    report : callable
        Told how many others there are, unless all are.
    """
    named = names.names(range(len(names)))
    there = np.array([decoder.has_feature(name) for name in named], np.bool_)
    if there.any() and not there.all():
        others = np.flatnonzero(~there)
        report(
            f"{path}: {others.size:,} of {len(names):,} weights are left out, as their features, "
            f"such as {named[others[0]]}, are not in use here"
        )
    return there
