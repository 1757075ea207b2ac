"""What a parallel strategy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torchtune_smt.core.accepts import Checked
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.losses import Loss
from torchtune_smt.parallel.engine import Engine
from torchtune_smt.tuners.base import Tuner


@dataclass(frozen=True)
class Work:
    """What is to be tuned, and with what.

    `make` returns a tuner of some weights, on some sentences, with some decoder; `engine` is where
    shards are computed; `lines` has the line (from 1) of each sentence in its file, which has
    `total_lines`.
    """

    make: Callable[[Weights, Sentences, Decoder], Tuner]
    weights: Weights
    sentences: Sentences
    decoder: Decoder
    engine: Engine
    seed: int
    lines: Sequence[int]
    total_lines: int


class Strategy(Checked, ABC):
    """Says what of an epoch is computed where, and how weights come together.

    shards_data: whether shards are computed, on an engine.
    decodes_lists: whether the lists that a batch tuner collects are decoded on an engine.
    """

    shards_data: ClassVar[bool] = False
    decodes_lists: ClassVar[bool] = False

    def check(self, kind: type[Tuner], loss: Loss | None) -> None:
        """Raise InputError if it cannot spread the rounds of a tuner with a loss; it can, here.

        Commands ask before they read or build anything.

        kind: of the tuner.
        loss: None: the tuner takes none.
        """
        return None

    @abstractmethod
    def tuner(self, work: Work) -> Tuner:
        """Return the tuner whose rounds are epochs of this strategy.

        Raises InputError: what is to be tuned does not go with it.
        """

    def decoder(self, decoder: Decoder, engine: Engine) -> Decoder:
        """Return what decodes the sentences whose lists a batch tuner collects."""
        return decoder


class Serial(Strategy):
    """One mini-batch after the other, each decoded with the weights that the last one has left."""

    def tuner(self, work: Work) -> Tuner:
        """Return the tuner itself."""
        return work.make(work.weights, work.sentences, work.decoder)
