"""Decoding on an engine: workers decode, and one process learns from all lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import numbered
from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.parallel.base import Serial
from torchtune_smt.parallel.engine import Engine
from torchtune_smt.parallel.shard_worker import active
from torchtune_smt.tuners.grouping.steps import ShardSteps


class Decode(Serial):
    """Workers decode the sentences whose lists a batch tuner collects; all else is as in `Serial`.

    Results are those of `Serial`, to the last bit: lists come back in the order of the sentences,
    and features have the ids that decoding here gives them.
    """

    decodes_lists: ClassVar[bool] = True

    def decoder(self, decoder: Decoder, engine: Engine) -> Decoder:
        """Return what decodes on the engine.

        Raises InputError: there is nothing to decode.
        """
        if decoder.stored:
            raise InputError(
                "parallel=decode: k-best lists are read from files here, and nothing is decoded; "
                "leave parallel out"
            )
        return EngineDecoder(decoder, engine)


@dataclass(frozen=True)
class DecodeTask:
    """Some sentences, and the length of their lists (None: the decoder's own)."""

    sources: Sequence[Source]
    k: int | None


class DecodeWorker:
    """Decodes sentences with the weights that it is sent; takes steps on shards of pairs."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __call__(self, common: FrozenWeights | None, task: DecodeTask | ShardSteps) -> Any:
        """Return lists over vocabularies of what is in them alone, or what a shard has come to."""
        if isinstance(task, ShardSteps):
            return task.take()
        assert common is not None
        lists = lists_of(self._decoder, task.sources, common, task.k)
        assert lists.features is not None and lists.words is not None
        features, rows = lists.rows.numbered()
        words, tokens = numbered(lists.strings()[1])
        return replace(
            lists,
            rows=rows,
            features=lists.features.part(features),
            tokens=tokens,
            words=lists.words.part(words),
        )


class EngineDecoder(Decoder):
    """Decodes on an engine, whose workers are `DecodeWorker`s.

    decoder: one like those of the workers. It decodes nothing here, but gives their ids to features
        (`Decoder.meet`).
    """

    def __init__(self, decoder: Decoder, engine: Engine) -> None:
        self._decoder, self._engine = decoder, engine
        self.dense_names, self.features = decoder.dense_names, decoder.features
        self.words = decoder.words
        # The sentences whose features have their ids.
        self._met: set[int] = set()

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence (see `Decoder.decode`)."""
        (lists,) = self._decoded(sources, snapshot, max(len(sources), 1), k)
        return lists

    def decode_all(
        self, sources: Sequence[Source], snapshot: Snapshot, size: int
    ) -> Iterator[KBestLists]:
        """Yield the lists of `size` sentences at a time; see `Decoder.decode_all`."""
        return self._decoded(sources, snapshot, size, None)

    def _decoded(
        self, sources: Sequence[Source], snapshot: Snapshot, size: int, k: int | None
    ) -> Iterator[KBestLists]:
        assert isinstance(snapshot, Weights)
        given: deque[Sequence[Source]] = deque()

        def tasks() -> Iterator[DecodeTask]:
            for begin in range(0, len(sources), size):
                given.append(sources[begin : begin + size])
                yield DecodeTask(given[-1], k)

        for lists in self._engine.map(active(snapshot), tasks()):
            new = [source for source in given.popleft() if source.index not in self._met]
            self._decoder.meet(new)
            self._met.update(source.index for source in new)
            yield self._own(lists)

    def _own(self, lists: KBestLists) -> KBestLists:
        """Return lists of a worker in the ids of features and words here."""
        assert lists.features is not None and lists.words is not None
        tokens = self.words.intern_all(lists.words)[lists.strings()[1]]
        rows = lists.rows.renamed(self.features.intern_all(lists.features))
        return replace(lists, rows=rows, features=self.features, tokens=tokens, words=self.words)
