"""What a decoder is to everybody else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.sentences import Sentences


class Decoder(ABC):
    """Gives k-best lists under weights, of which it changes none.

    A decoder has a vocabulary of features of its own, and whoever learns from its lists looks up
    their names (`torchtune_smt.core.feature_map`). A new one needs these attributes and `decode`.

    Attributes
    ----------
    dense_names : list of str
        Dense features; weights for this decoder have them as their first, in this order.
    features : Vocabulary
        Names of the features that it has met, the dense ones first. `decode` adds to it, and in
        an order that does not depend on weights if results are to be the same with them.
    words : Vocabulary
        Words of its hypotheses. References are looked up in it, too.
    """

    dense_names: list[str]
    features: Vocabulary
    words: Vocabulary

    @abstractmethod
    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence, in the order given.

        Parameters
        ----------
        snapshot : Snapshot
            The weights, read by ids in `features`.
        k : int, optional
            Length of the lists at most; by default what the decoder was made for.

        Returns
        -------
        KBestLists
            With scores, best first, over `features` and `words`.
        """

    def sentences(
        self, name: str, corpus: Corpus | None, report: Callable[[str], None] = print
    ) -> Sentences:
        """Return the sentences of a corpus that can be decoded, with their references: all.

        Parameters
        ----------
        name : str
            What the set is called: ``train``, ``dev``, ``test``.
        corpus : Corpus, optional
            None: there is none, which only a decoder that has sentences itself can do without.
        report : callable
            Told what is left out.

        Raises
        ------
        InputError
            There must be a corpus, or it does not fit.
        """
        if corpus is None:
            raise InputError(f"data.{name} is null, and it is needed; name its files")
        return Sentences.of(corpus.source, corpus.references)

    def feature_ids(self, sources: Sequence[Source]) -> Int64 | None:
        """Return all sparse features that the hypotheses of some sentences can have.

        Nothing is decoded. OSCAR counts them for its d.

        Returns
        -------
        int64 [n], optional
            Ids in `features`, ascending; None if they are not known before decoding.
        """
        return None

    def fork(self) -> Self:
        """Return a decoder like this one, whose vocabulary of features grows on its own.

        What is decoded with it has no influence on the ids of features here.
        """
        other = copy(self)
        other.features = self.features.copy()
        return other
