"""Which sentences are in which shard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines


def random_shards(sentences: int, shards: int, seed: int) -> list[Int64]:
    """Return the sentences (int64, ascending) of each shard; sizes differ by one at most.

    Raises
    ------
    InputError
        There are fewer sentences than shards.
    """
    if sentences < shards:
        raise InputError(
            f"parallel.shards={shards}, and there are {sentences} sentences to tune on; give no "
            "more shards than sentences"
        )
    # Epochs, which draw with the same seed, count from 1.
    order = np.random.default_rng((seed, 0)).permutation(sentences)
    return [np.sort(part) for part in np.array_split(order, shards)]


def labelled_shards(path: str, lines: Sequence[int], total: int) -> dict[str, Int64]:
    """Return the sentences (int64, ascending) of each label, labels in alphabetical order.

    Parameters
    ----------
    path : str
        A label in each line.
    lines : sequence of int
        The line of each sentence, from 1.
    total : int
        How many lines the text has.

    Raises
    ------
    InputError
        The file is bad, has another number of lines than the text, or a line without a label.
    """
    labels = [line.strip() for line in read_lines(path)]
    if len(labels) != total:
        raise InputError(
            f"has {len(labels)} lines, and the text that is tuned on has {total}: each line needs "
            "a label, and the labels of another text tell nothing",
            path=path,
        )
    found: dict[str, list[int]] = {}
    for sentence, line in enumerate(lines):
        if not labels[line - 1]:
            raise InputError("has no label; each line of the text needs one", path=path, line=line)
        found.setdefault(labels[line - 1], []).append(sentence)
    return {label: np.array(found[label], np.int64) for label in sorted(found)}
