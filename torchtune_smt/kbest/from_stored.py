"""k-best lists of files, as batch tuners take them."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.stored_lists import StoredLists


def flat_of_stored(stored: StoredLists, gains: Float64 | None = None) -> KBestLists:
    """Return stored lists for a batch tuner, with no decoder between.

    Feature ids are those of ``stored.features``. Arrays are shared where they can be.

    Parameters
    ----------
    stored : StoredLists
    gains : float64 [n], optional
        Sentence-level gains of all entries; zeros by default, for tuners that compute theirs
        from statistics.
    """
    return KBestLists(
        index=stored.sentence,
        begin=stored.list_begin,
        # A decoder has sorted the rows by the ids of its weights.
        rows=Rows(stored.row_begin, stored.feature, stored.value).sorted(),
        features=stored.features,
        gain=np.zeros(stored.n_entries) if gains is None else gains,
        statistics=stored.statistics if stored.has_statistics else None,
    )
