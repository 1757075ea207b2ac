"""N-gram language models: loading and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np

from torchtune_smt.core.archive import checksum, file_checksum
from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.errors import REBUILD, InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.textio import read_packed
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.lm import kernels
from torchtune_smt.lm.arpa import parse_arpa
from torchtune_smt.lm.ngrams import BEGIN, END, Ngrams
from torchtune_smt.lm.tables import LmTables, build_tables, read_cache, write_cache

UNKNOWN_WORD = 0


class NgramModel:
    """A back-off n-gram model, in log10.

    order: length of the longest n-grams, 1 to 6.
    words: word 0 is ``<unk>``; ``<s>`` and ``</s>`` are among the others.
    tables: for compiled code, with `torchtune_smt.lm.kernels`: `transition`, `match`.

    As attributes:
    begin_state: the state after ``<s>``.
    end_word: word id of ``</s>``.
    checksum: of the file that it was loaded from; empty if it was not.
    """

    def __init__(self, order: int, words: Vocabulary, tables: LmTables) -> None:
        self.order = order
        self.words = words
        self.tables = tables
        self.begin_state = int(tables.nodes["state"][words.id(BEGIN) + 1])
        self.end_word = words.id(END)
        self.checksum = ""

    @classmethod
    def from_ngrams(cls, ngrams: Ngrams) -> NgramModel:
        """Return the model of a list of n-grams. Raises InputError: as `build_tables`."""
        return cls(ngrams.order, ngrams.words, build_tables(ngrams))

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        cache: bool = True,
        *,
        expected: str | None = None,
        may_write: bool = True,
    ) -> NgramModel:
        """Load an ARPA file, plain or gz.

        Raises InputError: as `read_arpa` and `build_tables`; the file has another checksum than the
        `expected` one.

        cache: read the binary copy ``<path>.cache`` if it belongs to this content, else write one,
            if it `may_write`, and the folder is not read-only.
        """
        if cache:
            found = file_checksum(path)
            stored = read_cache(path, found) if expected in (None, found) else None
            if stored is not None:
                model = cls(*stored)
                model.checksum = found
                return model
        packed = read_packed(path)
        # Of the very bytes that are parsed: the file may be replaced meanwhile.
        found = checksum(packed)
        if expected not in (None, found):
            raise InputError(f"is damaged or another file; {REBUILD}", path=path)
        model = cls.from_ngrams(parse_arpa(packed, path))
        model.checksum = found
        if cache and may_write:
            write_cache(path, found, model.order, model.words, model.tables)
        return model

    def word_ids(self, words: Sequence[str]) -> Int32:
        """Return the model's ids of words, 0 (``<unk>``) for those it does not know."""
        ids = self.words.lookup(words)
        ids[ids < 0] = UNKNOWN_WORD
        return ids

    def score(self, words: Sequence[str], bos: bool = True, eos: bool = True) -> tuple[float, int]:
        """Return the log10 probability of a sentence, and how many of its words are unknown.

        `bos`: it starts after ``<s>``, whose own probability is never charged; else with no
        context. `eos`: ``</s>`` is charged at the end.
        """
        total, unknown = self.score_all([words], bos, eos)
        return float(total[0]), int(unknown[0])

    def score_all(
        self, sentences: Sequence[Sequence[str]], bos: bool = True, eos: bool = True
    ) -> tuple[Float64, Int64]:
        """Score many sentences as `score` does one, in one call that is much faster."""
        begin = offsets([len(words) for words in sentences])
        ids = self.word_ids([word for words in sentences for word in words])
        total = self.score_ids(ids, begin, bos, eos)
        return total, np.diff(offsets(ids == UNKNOWN_WORD)[begin])

    def score_ids(self, ids: Int32, begin: Int64, bos: bool = True, eos: bool = True) -> Float64:
        """Return the log10 probabilities of sentences ``ids[begin[i]:begin[i + 1]]`` (float64)."""
        total: Float64 = np.empty(begin.size - 1, np.float64)
        state, end_word = self.begin_state if bos else 0, self.end_word if eos else -1
        kernels.score_sentences(*self.tables, ids, begin, state, end_word, total)
        return total
