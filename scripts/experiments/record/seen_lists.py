"""What is recorded of k-best lists: a line for each, and for small runs the lists themselves.

Nothing here knows the package, so recordings of any two versions of it can be compared. A line is

    call sentence entries content scores

where `call` counts calls of the decoder, and the last two are SHA-256: of hypotheses and features,
and of model scores. They depend on the order of the entries and on every bit of the numbers, but
not on the ids of words and features. Scores stand apart because their last bits depend on the order
in which features are added up, which is that of ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SeenList:
    """A k-best list, in no ids but its own.

    Attributes
    ----------
    sentence : int
        Its number in its set.
    hypotheses : list of str
        k of them, best first. Of a list without words: ``hypothesis N``, N its place from 0 in the
        list that was read.
    names : list of str
        Features, each once.
    row_begin, feature, value : int64 [k + 1], int64, float64
        Features of each hypothesis (CSR), as places in `names`.
    score : float64 [k]
        Model scores.
    """

    sentence: int
    hypotheses: list[str]
    names: list[str]
    row_begin: Array
    feature: Array
    value: Array
    score: Array

    def sorted(self) -> SeenList:
        """Return the list with the names that occur in order, and each row in this order."""
        order = sorted(np.unique(self.feature).tolist(), key=self.names.__getitem__)
        place = np.empty(len(self.names), np.int64)
        place[order] = np.arange(len(order))
        feature = place[self.feature]
        row = np.repeat(np.arange(len(self.hypotheses)), np.diff(self.row_begin))
        chosen = np.lexsort((feature, row))
        names = [self.names[i] for i in order]
        begin = self.row_begin.astype("<i8")
        value, score = self.value[chosen].astype("<f8"), self.score.astype("<f8")
        feature = feature[chosen].astype("<i8")
        return SeenList(self.sentence, self.hypotheses, names, begin, feature, value, score)

    def digests(self) -> tuple[str, str]:
        """Return the digests of content and scores of a list that is `sorted`."""
        content = hashlib.sha256(json.dumps([self.hypotheses, self.names]).encode())
        for array in (self.row_begin, self.feature, self.value):
            content.update(array.tobytes())
        return content.hexdigest(), hashlib.sha256(self.score.tobytes()).hexdigest()


class Line(NamedTuple):
    """What is always recorded of a list."""

    call: int
    sentence: int
    entries: int
    content: str
    scores: str

    @classmethod
    def parse(cls, text: str) -> Line:
        """Return the line that was written as this text."""
        call, sentence, entries, content, scores = text.split()
        return cls(int(call), int(sentence), int(entries), content, scores)


class ListWriter:
    """Writes ``PATH.txt``, a line a list, and at the end, if wanted, the lists as ``PATH.npz``."""

    def __init__(self, path: Path, *, keep: bool) -> None:
        self._file = path.with_suffix(".txt").open("w", encoding="utf-8")
        self._path = path.with_suffix(".npz")
        self._kept: list[SeenList] | None = [] if keep else None
        self._calls = 0

    def call(self, lists: Sequence[SeenList]) -> None:
        """Write the lists that a call of the decoder has returned."""
        for seen in lists:
            ordered = seen.sorted()
            line = Line(self._calls, seen.sentence, len(seen.hypotheses), *ordered.digests())
            print(*line, file=self._file)
            if self._kept is not None:
                self._kept.append(ordered)
        self._calls += 1

    def close(self) -> None:
        """End the files."""
        self._file.close()
        if self._kept is not None:
            np.savez_compressed(self._path, **_arrays(self._kept))


def read_lists(path: Path) -> Iterator[SeenList]:
    """Yield the lists of an ``.npz`` file, which stand there in the order of the lines."""
    with np.load(path) as file:
        arrays = dict(file)
    names, hypotheses = _texts(arrays["names"]), _texts(arrays["hypotheses"])
    begins = np.append(0, np.cumsum(arrays["row"]))
    ends = np.cumsum(arrays["entries"])
    for sentence, last, k in zip(arrays["sentence"], ends, arrays["entries"], strict=True):
        first = last - k
        begin = begins[first : last + 1]
        span = slice(begin[0], begin[-1])
        used, feature = np.unique(arrays["feature"][span], return_inverse=True)
        yield SeenList(
            int(sentence),
            hypotheses[first:last],
            [names[i] for i in used],
            begin - begin[0],
            feature,
            arrays["value"][span],
            arrays["score"][first:last],
        ).sorted()


def _arrays(lists: Sequence[SeenList]) -> dict[str, Array]:
    """Return lists as arrays: of lists, of entries (`row` is the length of one), of features."""
    names = sorted({name for seen in lists for name in seen.names})
    place = {name: i for i, name in enumerate(names)}
    features = [np.array([place[n] for n in seen.names], np.int32)[seen.feature] for seen in lists]
    return {
        "sentence": np.array([seen.sentence for seen in lists], np.int64),
        "entries": np.array([len(seen.hypotheses) for seen in lists], np.int64),
        "hypotheses": _bytes([text for seen in lists for text in seen.hypotheses]),
        "score": np.concatenate([np.empty(0), *[seen.score for seen in lists]]),
        "row": np.concatenate([np.empty(0, int), *[np.diff(seen.row_begin) for seen in lists]]),
        "feature": np.concatenate([np.empty(0, np.int32), *features]),
        "value": np.concatenate([np.empty(0), *[seen.value for seen in lists]]),
        "names": _bytes(names),
    }


def _bytes(texts: Sequence[str]) -> Array:
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _texts(array: Array) -> list[str]:
    return array.tobytes().decode().split("\n")
