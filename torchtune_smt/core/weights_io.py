"""Weights files: text that people, cdec and this package read, exact to the last bit.

One ``name value`` a line; lines that begin with ``#`` are comments. Features that are not named
have weight 0. Comments at the top may say what the weights belong to,
for people and for this package::

    # torchtune_smt weights, which belong to
    # grammar: outputs/models/example (de-en) [3f786850e387550f]
    # language model: outputs/models/example (de-en) [89e6c98d92887913]
    # features: dense rule_id rule_shape source_ngram [2b66fd261ee5c6cf]
    # text: de-en normalize tokenize lowercase

or, where there was no model, which would know its dense features::

    # torchtune_smt weights, which belong to
    # k-best lists: dev.nbest.gz
    # dense features: LanguageModel LanguageModel_OOV WordPenalty

In brackets are the first 16 digits of a checksum: that of a file, of a model's bitext and settings
(so that a model which is built again, elsewhere, too, is the same one), or of the features.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import numpy as np

from torchtune_smt.core import text_kernels as kernels
from torchtune_smt.core.archive import checksum
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.text_kernels import POWERS, count_lines
from torchtune_smt.core.textio import (
    AnyPath,
    atomic_writer,
    check_plain,
    check_utf8,
    iterate_lines,
    read_text,
    reading,
)
from torchtune_smt.core.vocabulary import Vocabulary

Made = TypeVar("Made")
_TITLE: Final = "torchtune_smt weights, which belong to"
_MODEL: Final = ("grammar", "language model", "features", "text")
_LISTS: Final = ("k-best lists",)
# Not needed to be whole: there was a time when files did not have it.
_DENSE: Final = "dense features"
_NO_NAME: Final = "-"
_DIGITS: Final = 16
_PART: Final = re.compile(r"([a-z-]+(?: [a-z]+)?): (.*?)(?: \[([0-9a-f]{16})\])?")


class Part(NamedTuple):
    """One of the things that weights belong to.

    name: for people.
    digest: tells whether two are the same; empty where only the name does.
    """

    name: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name} [{self.digest}]" if self.digest else self.name


@dataclass(frozen=True)
class Origin:
    """What weights belong to.

    parts: those of a model, or of k-best lists.
    dense: the dense features of k-best lists, if they are known.
    """

    parts: Mapping[str, Part]
    dense: Sequence[str] | None = None

    @classmethod
    def of_model(cls, grammar: Part, language_model: Part, features: Part, text: str) -> Origin:
        """Return the origin of weights that a decoder was tuned to; see `text`."""
        parts = (grammar, language_model, features, Part(text))
        return cls(dict(zip(_MODEL, parts, strict=True)))

    @classmethod
    def of_lists(cls, names: Sequence[str], dense: Sequence[str] | None = None) -> Origin:
        """Return the origin of weights that were tuned on k-best lists of some names."""
        return cls({_LISTS[0]: Part(" ".join(names))}, dense)

    @classmethod
    def parse(cls, comments: Sequence[str], path: AnyPath) -> Origin | None:
        """Return the origin that the comments at the top of a weights file name, if they do."""
        if _TITLE not in comments:
            return None
        behind = comments[comments.index(_TITLE) + 1 :]
        found = [_PART.fullmatch(line) for line in behind]
        parts = [(m[1], Part(m[2], m[3] or "")) for m in found if m and m[1] in _MODEL + _LISTS]
        if tuple(kind for kind, _ in parts) not in (_MODEL, _LISTS):
            raise InputError(
                f"does not name all that the weights belong to ({', '.join(_MODEL)}); take the "
                "file as it was written, or remove all comments at its top",
                path=path,
            )
        origin = cls(dict(parts))
        named = [line.split()[2:] for line in behind if line.startswith(f"{_DENSE}: ")]
        if origin.is_model or not named:
            return origin
        names = [] if named[0] == [_NO_NAME] else [unquote(name) for name in named[0]]
        return replace(origin, dense=names)

    @property
    def is_model(self) -> bool:
        """Whether the weights belong to a model, and not to lists."""
        return tuple(self.parts) == _MODEL

    @property
    def text(self) -> str:
        """The languages of a model, and how text was prepared."""
        return self.parts["text"].name

    def comments(self) -> list[str]:
        """Return the comments for a weights file."""
        # A name in one line: that of a folder may have anything in it.
        named = {
            kind: part._replace(name=" ".join(part.name.replace("\0", " ").split()) or "-")
            for kind, part in self.parts.items()
        }
        lines = [_TITLE, *(f"{kind}: {part}" for kind, part in named.items())]
        if self.dense is not None:
            lines.append(f"{_DENSE}: {' '.join(map(_quoted, self.dense)) or _NO_NAME}")
        return lines

    def difference(self, other: Origin) -> str | None:
        """Return what this has and the other one has in its place; None if they are the same.

        Lists are never another model: many belong to one.
        """
        kinds = [
            kind
            for kind, part in self.parts.items()
            if part.digest and part.digest != other.parts.get(kind, Part("")).digest
        ]
        if not kinds:
            return None
        here = kinds if other.is_model else other.parts
        return f"{_list(self.parts, kinds)}, and not to {_list(other.parts, here)}"

    def digests(self) -> dict[str, str]:
        """Return the digests by the name of the part."""
        return {kind: part.digest for kind, part in self.parts.items() if part.digest}


def digest_of(content: Any) -> str:
    """Return a digest of what JSON can write."""
    return short(checksum(json.dumps(content, sort_keys=True).encode()))


def short(checksum: str) -> str:
    """Return the digest that stands for a checksum."""
    return checksum[:_DIGITS]


def _quoted(name: str) -> str:
    """Return the name of a feature as one word."""
    if name == _NO_NAME:
        return "%2D"
    return "".join(quote(c) if c in "%\0" or c.isspace() else c for c in name)


def _list(parts: Mapping[str, Part], kinds: Sequence[str] | Mapping[str, Part]) -> str:
    return " and ".join(f"the {kind} {parts[kind]}" for kind in kinds)


# Coordinates that are read at a time, which bounds the memory of bringing them up to date.
CHUNK = 1 << 20

# A reader drops a byte order mark where a file begins with it.
WRITABLE = re.compile(r"(?![#\ \t\ufeff])[^\n\r\0]*[^\n\r\ \t\0](?<![\ \t]=)")

_PROBLEMS = {
    kernels.NO_VALUE: "has no value; write `name value`",
    kernels.NO_NAME: "has no name; write `name value`",
    kernels.NO_NUMBER: "has a value that is no finite number; write `name value`",
}


def save_weights(
    path: AnyPath, weights: NamedWeights, origin: Origin | None = None, last: Sequence[str] = ()
) -> int:
    """Write the weights that are not 0: dense ones in the order of their ids, then sparse by name.

    Values have as many digits as it takes to read the same numbers back.

    path: packed with gzip if it ends in ``.gz``.
    weights: such as `Weights`, `FrozenWeights`, or the snapshot of a learner.
    origin: what they belong to, which comments at the top say.
    last: comments behind them, of one line each.

    Returns int: the number of weights written.

    Raises ValueError: a weight is NaN or infinite, or a name cannot be written: it is empty, begins
        with ``#`` or a byte order mark, or has a line break or a zero byte, or a blank at its begin
        or end or before a ``=`` there.
    """
    chosen_ids, chosen_values = [], []
    dimension = len(weights.features)
    for begin in range(0, dimension, CHUNK):
        ids = np.arange(begin, min(begin + CHUNK, dimension))
        values = weights.read(None, ids)
        active = values != 0
        chosen_ids.append(ids[active])
        chosen_values.append(values[active])
    ids = np.concatenate(chosen_ids) if chosen_ids else np.zeros(0, np.int64)
    numbers = np.concatenate(chosen_values) if chosen_values else np.zeros(0)
    names = weights.features.names(ids)
    for p in np.flatnonzero(~np.isfinite(numbers)):
        raise ValueError(
            f"the weight of {names[p]!r} is {numbers[p]} and cannot be saved: lower the learning "
            "rate, or check the feature values"
        )
    for name in names:
        if not WRITABLE.fullmatch(name):
            raise ValueError(f"the feature name {name!r} cannot be written to a weights file")
    entries = list(zip(names, numbers.tolist(), strict=True))
    dense = int(np.searchsorted(ids, weights.n_dense))
    entries[dense:] = sorted(entries[dense:])
    comments = [] if origin is None else origin.comments()
    with atomic_writer(path) as file:
        file.writelines(f"# {comment}\n" for comment in comments)
        file.writelines(f"{name} {value!r}\n" for name, value in entries)
        file.writelines(f"# {comment}\n" for comment in last)
    return len(entries)


def read_weights(path: AnyPath) -> tuple[Vocabulary, Float64]:
    """Read a weights file.

    The last blank, tab or ``=`` of a line separates name and value, as in cdec; a ``=`` may stand
    between blanks.

    Returns names: in the order of the file: names[i] has the weight values[i].
    Returns values

    Raises InputError: a line lacks its name or value, has a value that is no finite number, or
        names a feature again; or as `read_text`.
    """
    text = _read(path)
    check_utf8(text, path)
    letters = np.frombuffer(text, np.uint8)
    spans, problem, line = kernels.split_weights(letters, min(count_lines(letters)), POWERS)
    # Python's float rounds correctly, so that what was written is read back exactly.
    bounds = zip(spans[:, 2].tolist(), spans[:, 3].tolist(), strict=True)
    values: Float64 = np.array([float(text[begin:end]) for begin, end in bounds], np.float64)
    for i in np.flatnonzero(~np.isfinite(values))[:1]:
        problem, line = kernels.NO_NUMBER, int(spans[i, 4])
    if problem:
        raise InputError(_PROBLEMS[problem], path=path, line=line)
    names = Vocabulary()
    ids = names.intern_spans(letters, spans[:, 0].copy(), spans[:, 1].copy())
    if len(names) < ids.size:
        again = int(np.flatnonzero(ids != np.arange(ids.size))[0])
        first = int(spans[ids[again], 4])
        raise InputError(
            f"{names[ids[again]]!r} has a weight already, in line {first}; remove one of them",
            path=path,
            line=int(spans[again, 4]),
        )
    return names, values


def read_comment(path: AnyPath, title: str, made: Callable[[Any], Made]) -> Made | None:
    """Return what is made of the JSON in a comment, wherever it stands; None if there is none.

    title: what the comment begins with.
    made: may raise what constructors do.

    Raises InputError: the comment is not whole.
    """
    name = os.fspath(path)
    with reading(path):
        changed = os.stat(path).st_mtime_ns
    if _comments[:2] != (name, changed):
        _read(path)
    comments = _comments[2]
    begin = title.rstrip().encode()
    said = next((line.removeprefix(begin) for line in comments if line.startswith(begin)), None)
    if said is None:
        return None
    try:
        return made(json.loads(said.decode("utf-8", "replace")))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, InputError):
        raise InputError(
            f"its line '# {title}...' is not whole; take the file as it was written", path=path
        ) from None


# Those of the file that was read last, its name and its time: several are asked for of one file,
# which may have millions of weights.
_comments: tuple[str, int, list[bytes]] = ("", 0, [])


def _read(path: AnyPath) -> bytearray:
    """Return what a weights file has, and remember its comments."""
    global _comments
    with reading(path):
        changed = os.stat(path).st_mtime_ns
    text = read_text(path)
    found = re.findall(rb"\n#[ \t]*(.*)", text)
    if text.startswith(b"#"):
        found.insert(0, bytes(text[1 : text.index(b"\n")].lstrip(b" \t")))
    _comments = os.fspath(path), changed, found
    return text


def read_origin(path: AnyPath) -> Origin | None:
    """Return what a weights file says that it belongs to; None if it says nothing, as others do."""
    check_plain(path)
    top = takewhile(lambda line: line.startswith("#") or not line.strip(), iterate_lines(path))
    return Origin.parse([line[1:].strip() for line in top], path)
