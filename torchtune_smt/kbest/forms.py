"""The forms of k-best lists that tools write: each is recognised, and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.accepts import FINITE, one_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.text import split_fields
from torchtune_smt.core.textio import blocks_of_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import WRITABLE
from torchtune_smt.kbest import readers
from torchtune_smt.kbest.columns import OWN_SCORE, AnyPath, scaled, with_columns, with_score
from torchtune_smt.kbest.formats import Format, OnError
from torchtune_smt.kbest.formats import read_lists as read_bars
from torchtune_smt.kbest.lists import KBestLists, tokens_of
from torchtune_smt.kbest.readers import SCORE, Entry, Sizes, is_number
from torchtune_smt.kbest.stored_lists import StoredLists, listed, merged

# Lines of a file that are looked at to tell its form.
_LOOKED_AT: Final = 1000


class Form(NamedTuple):
    """A form of lists.

    looks: says whether a path has it, by its first lines that are not blank (none of a folder).
    read: yields the entries of a path; see `Sizes`.
    """

    looks: Callable[[Path, Sequence[str]], bool]
    read: Callable[[Path, Sizes], Iterator[Entry]]


def _is_folder(found: Callable[[Path], object]) -> Callable[[Path, Sequence[str]], bool]:
    return lambda path, _: path.is_dir() and bool(found(path))


def _is_sockeye(_: Path, lines: Sequence[str]) -> bool:
    return bool(lines) and lines[0].startswith("{") and '"sentence_id"' in lines[0]


def _most(good: Sequence[bool]) -> bool:
    # One line among others may have a fault.
    return bool(good) and 2 * sum(good) >= len(good)


def _is_ctranslate2(_: Path, lines: Sequence[str]) -> bool:
    fields = [split_fields(line) for line in lines]
    return _most([len(some) == 2 and is_number(some[0]) for some in fields])


def _is_nemo(_: Path, lines: Sequence[str]) -> bool:
    ends = [line.rpartition("\t") for line in lines]
    return _most([bool(tab) and is_number(end) for _, tab, end in ends])


FORMS: Final[Mapping[str, Form]] = {
    "espnet": Form(_is_folder(readers.espnet_folders), readers.read_espnet),
    "kaldi": Form(_is_folder(readers.kaldi_files), readers.read_kaldi),
    "sockeye": Form(_is_sockeye, readers.read_sockeye),
    "json": Form(lambda _, lines: bool(lines) and lines[0].startswith("{"), readers.read_json),
    "hypo2trans": Form(
        lambda _, lines: bool(lines) and lines[0].startswith("["), readers.read_hypo2trans
    ),
    "fairseq": Form(lambda _, lines: any(map(readers.FAIRSEQ.match, lines)), readers.read_fairseq),
    "ctranslate2": Form(_is_ctranslate2, readers.read_ctranslate2),
    "nemo": Form(_is_nemo, readers.read_nemo),
    "lines": Form(lambda *_: False, readers.read_plain_lines),
}
"""The forms that are read hypothesis by hypothesis, in the order in which they are looked for."""

BARS: Final[Mapping[str, Format | None]] = {
    "bars": None,
    "cdec": "cdec",
    "joshua": "cdec",
    "marian": None,
    "moses": "moses",
    "phrasal": "moses",
    "travatar": None,
}

FORM_NAMES: Final = (*BARS, *FORMS)
"""How forms are called."""


def read_lists(
    path: AnyPath | Sequence[AnyPath],
    form: str | None = None,
    *,
    words: Vocabulary | None = None,
    features: Vocabulary | None = None,
    dense: Sequence[str] | None = None,
    missing: float | None = None,
    on_error: OnError = "error",
    score: bool | None = None,
    sizes: Sizes = None,
    columns: Mapping[str, AnyPath] | None = None,
    scale: Mapping[str, float] | None = None,
    ids: Vocabulary | None = None,
    shard: bool = False,
    text: bytearray | None = None,
    texts: bool = False,
) -> StoredLists:
    """Read k-best lists in whatever form.

    Lists of string ids are numbered in the order in which they come; ``lists.ids`` has the ids.

    Raises InputError: a file cannot be read, has a fault, or nothing is left of it.

    path: several are merged: hypotheses of a sentence follow each other.
    form: one of `FORMS`; told from the content by default.
    words, features: taken and added to.
    dense: names of the dense features; by default those without a colon.
    missing: the value of a dense feature that a hypothesis lacks; by default that is a fault.
    on_error ("error", "skip"): whether a hypothesis with a fault is an error, or is left out and
        counted.
    score: whether the score that the list was sorted by is a feature, `SCORE`; by default where the
        first hypothesis has no other one.
    sizes: of forms that do not say which hypotheses are of one sentence: how many each has, or a
        file with such a number a line.
    columns: features from other files; see `with_columns`.
    scale: what values of some features are multiplied with, costs with -1.
    ids: of sentences; taken and added to.
    shard: whether other files have more of the sentences; `merged` then sees which ones are
        missing.
    text: that of a file with fields between ``|||``, if it was read already.
    texts: whether `StoredLists.texts` are kept, of other forms.
    """
    paths = [Path(path)] if isinstance(path, str | PathLike) else [Path(one) for one in path]
    one_of(*FORM_NAMES).or_null().check("form", form)
    FINITE.or_null().check("missing", missing)
    words = Vocabulary() if words is None else words
    features = Vocabulary() if features is None else features
    ids = Vocabulary() if ids is None else ids
    if dense is not None:
        # These join the features when the file has been read.
        joined = {*(columns or ()), *((SCORE,) if score else ())}
        dense = [name for name in dense if name not in joined]
    parts = []
    for one in paths:
        name = form or detected(one)
        if name in BARS:
            part = (
                read_bars(
                    one, BARS[name], words=words, features=features, ids=ids, dense=dense,
                    missing=missing, on_error=on_error, shard=True, text=text,
                )
            )  # fmt: skip
            parts.append(with_score(part) if score else part)
        else:
            entries = _checked(FORMS[name].read(one, sizes), dense, missing, score)
            part, strings = _assembled(entries, one, words, features, ids, dense, missing, on_error)
            parts.append(replace(part, texts=strings) if texts else part)
    if len({part.lists.ids is None for part in parts}) > 1:
        raise InputError("some of the files name sentences, and others number them", path=paths[0])
    stored = merged(parts, paths, strict=on_error == "error" and not shard, by_line=name in BARS)
    if columns and len(parts) > 1:
        raise InputError("columns belong to one file of lists; join them in JSON lines")
    if columns:
        stored = with_columns(stored, columns, missing)
    return scaled(stored, scale, paths[0]) if scale else stored


def detected(path: Path) -> str:
    """Return the form of a file, or of a folder; raise InputError if there is none."""
    lines: list[str] = []
    if path.exists() and not path.is_file() and not path.is_dir():
        # A pipe is read once.
        return "bars"
    if not path.is_dir():
        # One that is no text has a fault, which readers tell, or leave out.
        every = map(str, chain.from_iterable(blocks_of_lines(path)))
        lines = list(islice((line for line in every if line.strip(" \t")), _LOOKED_AT))
    for name, form in FORMS.items():
        if form.looks(path, lines):
            return name
    if path.is_dir():
        raise InputError(
            "is a folder without lists; ESPnet's have {n}best_recog in them, and Kaldi's "
            "words_text, lm_cost and ac_cost",
            path=path,
        )
    return "bars"


def _assembled(
    entries: Iterable[Entry],
    path: Path,
    words: Vocabulary,
    features: Vocabulary,
    ids: Vocabulary,
    dense: Sequence[str] | None,
    missing: float | None,
    on_error: OnError,
) -> tuple[StoredLists, list[str]]:
    """Return entries as lists, and their texts; see `read_lists`."""
    sentences: dict[str | int, Sequence[str]] = {}
    sources: dict[str | int, str] = {}
    announced: set[str | int] = set()
    filled: set[str | int] = set()
    kept: list[Entry] = []
    places: list[int] = []
    faulty: set[str | int] = set()
    skipped: Counter[str] = Counter()
    strings: list[str] = []
    again = ""
    for entry in entries:
        if entry.text is None and not entry.error:
            twice = f"the sentence {entry.id!r} is there twice; remove one of them"
            again = twice if entry.id in announced else ""
            if again and on_error == "error":
                raise InputError(again, path=entry.path, line=entry.line)
            if not again:
                announced.add(entry.id)
                sentences[entry.id] = entry.references
                if entry.source is not None:
                    sources[entry.id] = entry.source
            continue
        if again:
            entry = entry._replace(error=entry.error or again)
        strings.append(entry.text or "")
        sentences.setdefault(entry.id, ())
        filled.add(entry.id)
        if entry.error and on_error == "error":
            raise InputError(entry.error, path=entry.path, line=entry.line)
        if entry.error:
            skipped[f"{'records' if entry.whole else 'hypotheses'} with a fault"] += 1
            faulty.add(entry.id)
        else:
            kept.append(entry)
            places.append(len(strings))
    if faulty:
        skipped["sentences with a fault"] = len(faulty)
    if not kept:
        raise InputError(
            f"no hypothesis is left ({listed(skipped) or 'there is none'}); check the form",
            path=path,
        )
    named = dict.fromkeys(name for entry in kept for name in entry.features)
    for bad in (name for name in named if not WRITABLE.fullmatch(name)):
        first = next(entry for entry in kept if bad in entry.features)
        raise InputError(
            f"the feature name {bad!r} cannot be written to a weights file; call it something else",
            path=first.path,
            line=first.line,
        )
    numbered = all(isinstance(id, int) for id in sentences)
    if numbered:
        number = {id: int(id) for id in sentences}
        n_sentences = max(number.values()) + 1
    else:
        names = [str(id) for id in sentences]
        if len(set(names)) < len(names):
            twice = next(name for name, n in Counter(names).items() if n > 1)
            raise InputError(
                f"the sentence {twice!r} is there as a number and as a text", path=path
            )
        number = dict(zip(sentences, ids.intern(names).tolist(), strict=True))
        n_sentences = len(ids)
    scores = [entry.score for entry in kept]
    lists = KBestLists(
        index=np.array([number[entry.id] for entry in kept], np.int64),
        begin=np.arange(len(kept) + 1),
        rows=Rows.of_dicts([entry.features for entry in kept], features),
        features=features,
        score=None if None in scores else np.array(scores, np.float64),
        entry=np.array(places, np.int64),
        ids=None if numbered else ids,
        **tokens_of([entry.text or "" for entry in kept], words),
    ).by_sentence()
    if dense is None:
        dense = [name for name in named if ":" not in name]
    stored = StoredLists(
        lists,
        list(dense),
        missing != 0,
        n_sentences,
        skipped,
        n_entries=len(strings),
        empty=frozenset(number[id] for id in announced - filled),
        references={number[id]: list(some) for id, some in sentences.items() if some},
        sources={number[id]: source for id, source in sources.items()},
    )
    return stored, strings


def _checked(
    entries: Iterable[Entry],
    dense: Sequence[str] | None,
    missing: float | None,
    score: bool | None,
) -> Iterator[Entry]:
    """Yield entries with the features that they are to have, or with what is wrong."""
    wanted: dict[str, None] | None = None if dense is None else dict.fromkeys(dense)
    for entry in entries:
        if entry.error or entry.text is None:
            yield entry
            continue
        features = entry.features
        if score is None:
            score = not features
        error = ""
        if score and entry.score is not None:
            if features.get(SCORE, entry.score) != entry.score:
                error = OWN_SCORE
            features = {**features, SCORE: entry.score}
        if wanted is None:
            wanted = {name: None for name in features if ":" not in name}
        if features.keys() != wanted.keys():
            lacking = [name for name in wanted if name not in features]
            new = [n for n in features if dense is None and n not in wanted and ":" not in n]
            if missing is None and (lacking or new):
                what = f"lacks the feature {lacking[0]!r}" if lacking else f"has {new[0]!r}"
                error = (
                    f"{what}, and the first hypothesis "
                    f"{'has it' if lacking else 'has not'}; say what stands for a missing one, "
                    "with missing=VALUE"
                )
            elif missing:
                features = {**dict.fromkeys(lacking, missing), **features}
        changed = error or features is not entry.features
        yield entry._replace(features=features, error=error) if changed else entry
