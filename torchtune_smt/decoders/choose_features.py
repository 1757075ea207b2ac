"""Choosing among the features of stored k-best lists."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Bool
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.features.template import templates_of

DENSE: Final = "dense"
"""Stands for all dense features."""

# Names that a message lists.
_SHOWN: Final = 20

# Moses gives the values of a label numbers.
_NUMBERED: Final = re.compile(r"(.+)_\d+")


def choose_features(
    features: Vocabulary, dense: Sequence[str], wanted: Sequence[str], path: str | os.PathLike[str]
) -> Bool:
    """Return which features are wanted (bool, one a feature).

    Parameters
    ----------
    features : Vocabulary
    dense : sequence of str
        Those of them that are dense.
    wanted : sequence of str
        Each is the name of a feature; or what several have in common, the template of sparse ones
        (see `templates_of`) or the label of dense ones (``TM0`` of ``TM0_0``, ``TM0_1``, ...); or
        `DENSE`.
    path : path
        What errors name.

    Raises
    ------
    InputError
        There is no feature for one of `wanted`; the message tells what there is.
    """
    is_dense: Bool = np.zeros(len(features), np.bool_)
    is_dense[[features.id(name) for name in dense]] = True
    chosen = is_dense & (DENSE in wanted)
    found = {DENSE} if dense else set()
    named = set(wanted) - {DENSE}
    sparse = features.names(np.flatnonzero(~is_dense))
    if named:
        common = dict(zip(sparse, templates_of(sparse), strict=True))
        for id, name in enumerate(features.names(range(len(features)))):
            reasons = named & {name, common.get(name) or _label(name)}
            chosen[id] |= bool(reasons)
            found |= reasons
    lacking = [name for name in wanted if name not in found]
    if lacking:
        templates = [name for name, _ in Counter(templates_of(sparse)).most_common()]
        raise InputError(
            f"has no feature {lacking[0]!r}, and no template or label of that name; there are the "
            f"dense features {_some(dense)}, and sparse ones of the templates {_some(templates)}",
            path=path,
        )
    return chosen


def _label(name: str) -> str:
    """Return the label of a dense feature."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


def _some(names: Sequence[str]) -> str:
    """Return names for a message."""
    text = ", ".join(names[:_SHOWN]) or "(none)"
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN:,} more"
