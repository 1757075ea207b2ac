"""Decoding on an engine gives what decoding here gives."""

import pickle

import numpy as np
import pytest
from test_online import DENSE, ListDecoder, random_lists, sentences_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.parallel.decode import Decode, DecodeTask, DecodeWorker
from torchtune_smt.parallel.engine import InProcess

LISTS = random_lists(5, sentences=11)
SOURCES = sentences_of(LISTS).sources


class Meeting(ListDecoder):
    """Says which features sentences have, without decoding them."""

    def meet(self, sources):
        names = {n for source in sources for _, row, _ in LISTS[source.index] for n in row}
        self.features.intern(sorted(names))


def weights():
    found = Weights(DENSE)
    names = [f"s:{i}" for i in range(0, 30, 2)]
    found.set([*DENSE, *names], np.random.default_rng(1).normal(size=2 + len(names)))
    return found


def open_worker():
    """Open a worker that has met other sentences before; what it is sent and returns is pickled."""
    decoder = ListDecoder(LISTS)
    decoder.decode(SOURCES[::-1], weights())
    worker = DecodeWorker(decoder)

    def work(*sent):
        return pickle.loads(pickle.dumps(worker(*pickle.loads(pickle.dumps(sent)))))

    return work


def content(lists):
    parts = [lists.index, lists.begin, lists.score, *vars(lists.rows).values()]
    texts = [lists.text(h) for h in range(lists.n_hypotheses)]
    return [*(part.tolist() for part in parts if part is not None), texts]


def test_lists_are_those_of_the_decoder_itself():
    engine = InProcess()
    engine.serve(open_worker)
    local, own = Meeting(LISTS), Meeting(LISTS)
    remote = Decode().decoder(own, engine)
    # Another time, with the same weights.
    for _ in range(2):
        found = list(remote.decode_all(SOURCES, weights(), 4))
        expected = list(local.decode_all(SOURCES, weights(), 4))
        assert [content(lists) for lists in found] == [content(lists) for lists in expected]
        for lists in found:
            lists.check()
    assert own.batches == []
    names = [d.features.names(range(len(d.features))) for d in (own, local)]
    assert names[0] == names[1]
    for k in (None, 3):
        some = [decoder.decode(SOURCES[2:5], weights(), k=k) for decoder in (remote, local)]
        assert content(some[0]) == content(some[1])


def test_what_travels_is_of_the_lists_alone():
    decoder = ListDecoder(LISTS)
    decoder.decode(SOURCES, weights())
    lists = DecodeWorker(decoder)(weights().frozen(), DecodeTask(SOURCES[:1], 2))
    assert lists.features is not None and lists.words is not None
    used = set(lists.rows.feature.tolist())
    assert used == set(range(len(lists.features)))
    assert lists.words.names(range(len(lists.words)))[0] == "w0" and len(lists.words) == 3


def test_stored_lists_are_not_decoded():
    decoder = ListDecoder(LISTS)
    vars(decoder)["stored"] = True
    with pytest.raises(InputError, match="k-best lists are read from files here"):
        Decode().decoder(decoder, InProcess())
