"""Parallel text: finding its files, reading them with every check, writing them.

Tokens of files are kept by their content in the user's folder of caches.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from torchtune_smt.core import archive, textio
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.core.text import RESERVED, UNKNOWN_WORDS
from torchtune_smt.data.preprocess import Preprocessor
from torchtune_smt.kbest.lists import Source

AnyPath = str | os.PathLike[str]

_SPLIT_ONLY: Final = Preprocessor(normalize=False, tokenize=False, lowercase=False)


@dataclass(frozen=True)
class Corpus:
    """Tokenised sentences with their references (none for a source without).

    lines: the line of sentence i in the files, counted from 1.
    dropped: how many lines were left out, by reason.
    """

    source: list[list[str]]
    references: list[list[list[str]]]
    lines: list[int]
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def targets(self) -> list[list[str]]:
        """The first reference of each sentence: the target side of a training bitext."""
        return [references[0] for references in self.references]

    @property
    def total(self) -> int:
        """How many lines the files have, those that were left out among them."""
        return len(self) + sum(self.dropped.values())

    def followed_by(self, other: Corpus) -> Corpus:
        """Return this corpus and the other in one; the lines are each file's own."""
        source, references = self.source + other.source, self.references + other.references
        dropped = dict(Counter(self.dropped) + Counter(other.dropped))
        return Corpus(source, references, self.lines + other.lines, dropped)

    def places_in(self, bitext: Corpus) -> dict[int, int]:
        """Return by the number of a sentence its number in a bitext: that of the same line there.

        A set that is read as a bitext lacks lines that are too long. One that is read from other
        files, or prepared in another way, has other words in a line.
        """
        places = {line: number for number, line in enumerate(bitext.lines)}
        return {
            i: places[line]
            for i, line in enumerate(self.lines)
            if line in places and self.source[i] == bitext.source[places[line]]
        }

    def summary(self) -> str:
        """Return a line for the log: how many sentences, and how many lines were dropped, why."""
        text = f"{len(self)} sentences"
        if self.dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            text += f", {sum(self.dropped.values())} lines dropped ({reasons})"
        return text


def read_corpus(
    source: AnyPath,
    references: Sequence[AnyPath] = (),
    *,
    empty: Literal["error", "skip"] = "error",
    source_text: Preprocessor | None = None,
    target_text: Preprocessor | None = None,
    lengths: tuple[int, float] | None = None,
    training: bool = False,
    max_words: int | None = None,
    lines: Sequence[Iterable[str]] | None = None,
) -> Corpus:
    """Read parallel files (plain or ``.gz``), line by line translations of each other.

    references: the target side of a bitext, or the references of a test set, one file each.
    empty: what happens to a line that has no word in one of the files: it is an error, or it is
        left out of all of them and counted.
    source_text, target_text: how raw text becomes tokens; by default lines are only split at blanks
        and tabs.
    lengths: pairs with a side of more words than this, or more words on one side for each of the
        other, are left out and counted.
    training: a model is to be made of the text: it has one target side, and `UNKNOWN_WORDS` in that
        are errors, as a language model is estimated from it.
    max_words: a source sentence with more words is an error.
    lines: the lines of each file, gone through once, where they are in memory already: the files
        are then only what errors call them.

    Raises InputError: a file is missing, not UTF-8, or not parallel to the source; a line has no
        words, too many, or a reserved one; or there are several target sides of a training text.
    """
    paths = [source, *references]
    if training and len(references) > 1:
        raise InputError(
            f"is a further target side of {source}, and training pairs have one target: append its "
            f"lines to {references[0]} and the source once more to the source, as pairs of their "
            "own; or leave it out",
            path=references[1],
        )
    texts = [source_text or _SPLIT_ONLY, *[target_text or _SPLIT_ONLY] * len(references)]
    files: list[Iterable[list[str]]]
    if lines is None:
        files = [_tokens_of(path, text) for path, text in zip(paths, texts, strict=True)]
    else:
        files = [map(text.tokens, one) for text, one in zip(texts, lines, strict=True)]
    of_target = RESERVED | UNKNOWN_WORDS if training else RESERVED
    reserved = [RESERVED, *[of_target] * len(references)]
    corpus = Corpus([], [], [])
    dropped: Counter[str] = Counter()
    number = 0
    for number, sides in enumerate(map(list, _rows(files, paths)), start=1):
        reason = None
        for path, words, kept in zip(paths, sides, reserved, strict=True):
            if not words:
                if empty == "error":
                    message = "has no words; remove it from all files, or set data.empty=skip"
                    raise InputError(message, path=path, line=number)
                reason = "empty"
            else:
                check_reserved(words, path, number, kept)
        if reason is None and lengths is not None:
            for words in sides[1:]:
                shorter, longer = sorted([len(sides[0]), len(words)])
                if longer > lengths[0]:
                    reason = reason or "too long"
                elif longer > lengths[1] * shorter:
                    reason = reason or "of too different lengths"
        if reason is not None:
            dropped[reason] += 1
            continue
        if max_words is not None:
            check_length(sides[0], max_words, paths[0], number)
        corpus.source.append(sides[0])
        corpus.references.append(sides[1:])
        corpus.lines.append(number)
    if number == 0:
        raise InputError("is empty; a line for each sentence is expected", path=paths[0])
    corpus.dropped.update(dropped)
    if not corpus.source:
        summary = corpus.summary()
        message = f"no sentence is left of {number} ({summary}); check files and limits of length"
        raise InputError(message, path=paths[0])
    return corpus


def check_reserved(
    words: Sequence[str], path: AnyPath, line: int, reserved: frozenset[str] = RESERVED
) -> None:
    """Raise InputError where a sentence has a reserved word."""
    if not reserved.isdisjoint(words):
        word = next(word for word in words if word in reserved)
        message = f"the word '{word}' is reserved; replace it or remove the line"
        raise InputError(message, path=path, line=line)


def check_length(words: Sequence[str], most: int, path: AnyPath, line: int) -> None:
    """Raise InputError where a sentence that is to be decoded has more than so many words."""
    if len(words) > most:
        message = f"has {len(words)} words, and at most {most} are decoded (decoder.max_words)"
        raise InputError(message, path=path, line=line)


# Tokens of files, by their content, in the user's folder of caches; files that stay when a new one
# is written, the last used ones, of so many bytes at most.
_TOKENS: Final = archive.Archive("copy of tokens", 1, "they are made again")
KEPT: Final = 100
_MOST: Final = 1 << 30


def _tokens_of(path: AnyPath, text: Preprocessor) -> Iterable[list[str]]:
    """Return the tokens of each line of a file, kept where that pays, and it can be read twice."""
    made = map(text.tokens, textio.iterate_lines(path))
    folder = archive.cache_folder("texts")
    moses = (text.tokenize or text.normalize) and text.compounds is None
    if not (moses and folder and Path(path).is_file()):
        return made
    key = {"file": archive.file_checksum(path), "made": _made_by(), "text": repr(text)}
    copy = folder / archive.checksum(repr(key).encode())
    found = _TOKENS.read_copy(copy, key, _lines)
    if found is None:
        return _keeping(made, path, copy, key)
    with suppress(OSError):
        os.utime(archive.cache_path(copy))
    return found


def _lines(copy: archive.Stored) -> list[list[str]]:
    lines = copy.arrays["text"].tobytes().decode().split("\n")
    return [line.split(" ") if line else [] for line in lines[:-1]]


def _keeping(
    made: Iterable[list[str]], path: AnyPath, copy: Path, key: dict[str, Any]
) -> Iterator[list[str]]:
    """Yield tokens, and keep them when all are made, and the file is still what it was."""
    lines = []
    for words in made:
        # Now, as whoever gets them may change them.
        lines.append(" ".join(words) + "\n")
        yield words
    with suppress(UnicodeError, OSError):
        text = np.frombuffer("".join(lines).encode(), np.uint8)
        if text.size > _MOST or archive.file_checksum(path) != key["file"]:
            return
        archive.make_cache_folder(copy.parent)
        _TOKENS.write_copy(copy, key, {}, {"text": text})
        archive.remove_old(copy.parent, KEPT, _MOST)


@functools.cache
def _made_by() -> str:
    """Return a hash of all that makes tokens of lines: the code, here and in sacremoses."""
    files = [PACKAGE / "core" / "text.py", PACKAGE / "data" / "preprocess.py"]
    moses = importlib.util.find_spec("sacremoses")
    for place in (moses and moses.submodule_search_locations) or ():
        files += sorted(Path(place).glob("*.py"))
    return archive.checksum(repr((sys.version, *(file.read_bytes() for file in files))).encode())


def _rows(
    files: Sequence[Iterable[list[str]]], paths: Sequence[AnyPath]
) -> Iterator[tuple[list[str], ...]]:
    """Yield the words of line n of each file; raise InputError where one ends before the others."""
    try:
        yield from textio.parallel_lines(files)
    except textio.UnequalLinesError as error:
        of_source, *_ = error.counts
        for path, count in zip(paths, error.counts, strict=True):
            if count != of_source:
                raise InputError(
                    f"{Path(path).name} has {count} lines, {Path(paths[0]).name} has {of_source}; "
                    "each line must be the translation of the same line of the other",
                    path=path,
                ) from None


def find_files(
    folder: AnyPath, split: str, source_language: str, target_language: str
) -> tuple[Path, list[Path]]:
    """Return the source file and the reference files of one part of a data set.

    They are ``<split>.<source>`` and ``<split>.<target>``, or ``<split>.<target>.0``, ``.1``, ...
    for several references; each may end in ``.gz``.

    Raises InputError: some are missing, or it is not clear which are meant.
    """
    folder = Path(folder)

    def existing(name: str) -> Path | None:
        plain, packed = folder / name, folder / f"{name}.gz"
        return plain if plain.is_file() else packed if packed.is_file() else None

    source = existing(f"{split}.{source_language}")
    name = f"{split}.{target_language}"
    single = existing(name)
    ends = (path.name.removesuffix(".gz").rsplit(".", 1)[1] for path in folder.glob(f"{name}.*"))
    numbers = sorted({int(end) for end in ends if end.isdecimal()})
    several = [existing(f"{name}.{index}") for index in range(len(numbers))]
    references = [path for path in several if path is not None]
    if source is None or (single is None) != bool(numbers) or None in several:
        there = sorted(path.name for path in folder.glob(f"{split}.*")) or ["none of these"]
        raise InputError(
            f"must have {split}.{source_language}, and either {name} or {name}.0, {name}.1, ... "
            f"without a gap, each plain or .gz, and has {', '.join(there)}; check the path and the "
            "languages of the data set",
            path=folder,
        )
    return source, references if single is None else [single]


def write_corpus(corpus: Corpus, source: AnyPath, references: Sequence[AnyPath]) -> None:
    """Write a corpus, with so many references, as parallel files (packed where they end in .gz)."""
    for path, lines in zip([source, *references], written_lines(corpus), strict=True):
        with textio.atomic_writer(path, own=True) as file:
            file.writelines(lines)


def written_lines(corpus: Corpus) -> Iterator[Iterator[str]]:
    """Yield the lines of each file of a corpus: those of the source, then of each reference."""
    yield (" ".join(words) + "\n" for words in corpus.source)
    for i in range(len(corpus.references[0])):
        yield (" ".join(sentence[i]) + "\n" for sentence in corpus.references)


ON_ERROR: Final = {"stop": "", "copy": "it is copied", "skip": "its translation is left empty"}
"""What may happen to a line of a source with a fault."""
_BATCH: Final = 64


def source_batches(
    path: str,
    tokens: Callable[[str], list[str]],
    longest: int | None,
    on_error: str,
    warn: Callable[[str], None],
    pipe: BufferedReader | None = None,
) -> Iterator[list[Source | str]]:
    """Yield a tokenised text in batches; an empty line is a sentence without words.

    A line with a fault comes as what is written in its place, or the error comes in its turn.

    tokens: returns the words of a line, `longest` at most.
    on_error: one of `ON_ERROR`; `warn` is told of lines with a fault.
    pipe: read in the place of a file, and called `path`: a batch is what has arrived, so that each
        line is answered before the next one.
    """
    number = 0

    def source(line: str | textio.BadLine) -> Source:
        if isinstance(line, textio.BadLine):
            raise line.error
        words = tokens(line)
        check_reserved(words, path, number)
        if longest is not None:
            check_length(words, longest, path, number)
        return Source(number - 1, words)

    for lines in textio.blocks_of_lines(path, pipe):
        for begin in range(0, len(lines), _BATCH):
            batch: list[Source | str] = []
            for line in lines[begin : begin + _BATCH]:
                number += 1
                try:
                    batch.append(source(line))
                except InputError as error:
                    if on_error == "stop":
                        yield batch
                        raise
                    warn(f"{error} ({ON_ERROR[on_error]})")
                    batch.append(str(line) if on_error == "copy" else "")
            yield batch
