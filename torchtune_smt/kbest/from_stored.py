"""k-best lists of files, as batch tuners take them."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.kbest.flat_lists import FlatLists
from torchtune_smt.kbest.stored_lists import StoredLists
from torchtune_smt.kbest.stored_lists_kernels import sort_rows


def flat_of_stored(stored: StoredLists, gains: Float64 | None = None) -> FlatLists:
    """Return stored lists for a batch tuner, with no decoder between.

    Feature ids are those of ``stored.features``. Arrays are shared where they can be.

    Parameters
    ----------
    stored : StoredLists
    gains : float64 [n], optional
        Sentence-level gains of all entries; zeros by default, for tuners that compute theirs
        from statistics.
    """
    feature, value = stored.feature, stored.value
    if not _ascending(stored):
        # A decoder has sorted the rows by the ids of its weights.
        feature, value = feature.copy(), value.copy()
        ids: Int32 = np.arange(len(stored.features), dtype=np.int32)
        sort_rows(stored.row_begin, feature, value, ids)
    return FlatLists(
        stored.sentence,
        stored.list_begin,
        stored.row_begin,
        feature,
        value,
        np.zeros(stored.n_entries) if gains is None else gains,
        stored.statistics,
        len(stored.features),
    )


def _ascending(stored: StoredLists) -> bool:
    """Say whether the ids of each row ascend."""
    rises = np.diff(stored.feature, prepend=-1) > 0
    # The first of a row may be less than the last of the row before.
    begins = stored.row_begin[stored.row_begin < stored.feature.size]
    rises[begins] = True
    return bool(rises.all())
