"""k-best lists in any PyTorch program: as tensors, in a `DataLoader`, with a model and losses.

Importing this brings torch and numpy, and no more of weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset

from torchtune_smt.core.segments import expected_gain, log_softmax, margins, matrices, sums
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.tensors import ListTensors, LogLinear
from torchtune_smt.losses.base import loss_of_lists
from torchtune_smt.samplers import PairSampler, list_pairs

__all__ = [
    "Collate",
    "KBest",
    "KBestLists",
    "ListDataset",
    "ListTensors",
    "LogLinear",
    "Vocabulary",
    "expected_gain",
    "list_pairs",
    "log_softmax",
    "loss_of_lists",
    "margins",
    "matrices",
    "sums",
]


class ListDataset(Dataset[KBest]):
    """The lists of some sentences, one an item, for ``DataLoader(..., collate_fn=Collate())``."""

    def __init__(self, lists: KBestLists) -> None:
        self.lists = lists

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, s: int) -> KBest:
        return self.lists[s]


@dataclass(frozen=True)
class Collate:
    """Makes a batch, for a `DataLoader`, of the lists of some sentences.

    >>> from torch.utils.data import DataLoader
    >>> lists = KBestLists.of_strings([["a", "b"], ["c", "d", "e"], ["f", "g"]])
    >>> [batch.begin.tolist() for batch in DataLoader(ListDataset(lists), 2, collate_fn=Collate())]
    [[0, 2, 5], [0, 2]]

    sampler: draws the pairs of each list; without it, a batch has none.
    seed: they are drawn with ``(*seed, index of the list)``: a list has the same ones in each
        epoch, unless the seed is another.
    """

    sampler: PairSampler | None = None
    seed: Sequence[int] = (0,)

    def __call__(self, kbests: Sequence[KBest]) -> ListTensors:
        """Return lists of single sentences as tensors."""
        lists = KBestLists.of(kbests)
        pairs = None if self.sampler is None else list_pairs(lists, self.sampler, self.seed)
        return lists.to_torch(pairs=pairs)
