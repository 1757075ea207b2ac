"""Word classes: estimated from a text, or read from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.accepts import integer
from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import atomic_writer, iterate_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import digest_of
from torchtune_smt.lm.class_kernels import exchange

# What stands at both ends of a sentence; no word is empty.
_END: Final = ""
_ROUNDS: Final = 30


class WordClasses(NamedTuple):
    """The classes of the words of two languages; `digest` tells them from others."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    digest: str

    @classmethod
    def read(cls, source: str | PathLike[str], target: str | PathLike[str]) -> WordClasses:
        """Return the classes of two files; see `read_classes`."""
        digest = digest_of([file_checksum(source), file_checksum(target)])
        return cls(read_classes(source), read_classes(target), digest)


def word_classes(sentences: Sequence[Sequence[str]], count: int) -> dict[str, str]:
    """Return classes that make a class bigram model of a text probable: of each word its number.

    That is the exchange algorithm of Martin, Liermann and Ney (1998), "Algorithms for bigram and
    trigram word clustering". Words move in the order of their frequency (of equally frequent ones
    the first of the text first), each to the class under which the text is most probable (of equal
    ones to that of the lowest number), and begin in class i % `count` as the i-th of them. The ends
    of sentences are a class of their own, which does not count. All words move 30 times at most.

    Raises ValueError: `count` is below 1.
    """
    integer(1).check("count", count)
    words = Vocabulary([_END])
    # Each end stands once between two sentences: it has as many words behind it as before it.
    ids = words.intern([word for sentence in sentences for word in (_END, *sentence)]).astype(int)
    size = len(words)
    often = np.bincount(ids, minlength=size)
    pair, number = np.unique(ids * size + np.roll(ids, -1), return_counts=True)
    first, second = np.divmod(pair, size)
    order = 1 + np.argsort(-often[1:], kind="stable")
    group = np.full(size, count, np.int32)
    group[order] = np.arange(order.size) % count
    by_second = np.argsort(second, kind="stable")
    begin, left_begin = (offsets(np.bincount(word, minlength=size)) for word in (first, second))
    left = left_begin, first[by_second], number[by_second]
    exchange(order, often, begin, second, number, *left, group, count, _ROUNDS)
    return dict(zip(words.names(range(1, size)), map(str, group[1:].tolist()), strict=True))


def read_classes(path: str | PathLike[str]) -> dict[str, str]:
    """Return the class of each word of a file, as mkcls and word2vec write it: ``word class``."""
    found: dict[str, str] = {}
    for number, line in enumerate(iterate_lines(path), start=1):
        fields = split_words(line)
        if len(fields) != 2:
            said = f"expected a word, a tab and its class, not {line[:60]!r}"
            raise InputError(said, path=path, line=number)
        if fields[0] in found:
            said = f"has {fields[0]!r} again; leave one of the lines out"
            raise InputError(said, path=path, line=number)
        found[fields[0]] = fields[1]
    return found


def write_classes(path: str | PathLike[str], classes: Mapping[str, str]) -> None:
    """Write classes for `read_classes`."""
    with atomic_writer(path) as file:
        file.writelines(f"{word}\t{kind}\n" for word, kind in classes.items())
