"""What a decoder is to everybody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBest, Source


class Decoder(Protocol):
    """Gives k-best lists under weights.

    Attributes
    ----------
    dense_names : list of str
        Dense features; `Weights` for this decoder have them as their first, in this order.
    target_words : Vocabulary
        Words of its hypotheses. References are looked up in it, too.
    """

    dense_names: list[str]
    target_words: Vocabulary

    def decode(
        self, sources: Sequence[Source], weights: Weights, *, k: int | None = None
    ) -> list[KBest]:
        """Return the k-best list of each sentence, in the order given.

        Features that are met for the first time are added to ``weights.features``.

        Parameters
        ----------
        k : int, optional
            Length of the lists at most; by default what the decoder was made for.
        """
        ...
