"""k-best lists in whatever form tools write: each is recognised, and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from torchtune_smt.core.accepts import FINITE, one_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.textio import blocks_of_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import WRITABLE
from torchtune_smt.kbest.columns import OWN_SCORE, scaled, with_columns, with_score
from torchtune_smt.kbest.formats import Format, OnError, read_bars
from torchtune_smt.kbest.lists import KBestLists, tokens_of
from torchtune_smt.kbest.stored_lists import StoredLists, listed, merged, names_in
from torchtune_smt.kbest.tools import FORMS, SCORE, AnyPath, Entry, Sizes

# Lines of a file that are looked at to tell its form.
_LOOKED_AT: Final = 1000

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
    if dense is not None:
        # These join the features when the file has been read.
        joined = {*(columns or ()), *((SCORE,) if score else ())}
        dense = [name for name in dense if name not in joined]
    features = Vocabulary() if features is None else features
    common: dict[str, Any] = {
        "words": Vocabulary() if words is None else words,
        "ids": Vocabulary() if ids is None else ids,
        "dense": dense,
        "missing": missing,
        "on_error": on_error,
    }
    parts: list[StoredLists] = []
    for one in paths:
        name = form or detected(one)
        # Names of their own, which may mean what is there, or is wanted, under other ones.
        wanted = parts[0].dense_names if parts and dense is None else dense
        common["features"] = features if wanted is None else Vocabulary()
        if name in BARS:
            part = read_bars(one, BARS[name], text, **common)
            part = with_score(part) if score else part
        else:
            entries = _checked(FORMS[name].read(one, sizes), dense, missing, score)
            part = _assembled(entries, one, **common)
            part = part if texts else replace(part, texts=())
        if wanted is not None:
            part = part.called(wanted, features)
        if parts:
            part.check_dense(parts[0].dense_names, one)
        parts.append(part)
    if len({part.lists.ids is None for part in parts}) > 1:
        raise InputError("some of the files name sentences, and others number them", path=paths[0])
    stored = parts[0]
    if len(parts) > 1 or not shard:
        strict = on_error == "error" and not shard
        stored = merged(parts, paths, strict=strict, by_line=name in BARS)
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
    found = next((name for name, form in FORMS.items() if form.looks(path, lines)), "bars")
    if found == "bars" and path.is_dir():
        raise InputError(
            "is a folder without lists; ESPnet's have {n}best_recog in them, and Kaldi's "
            "words_text, lm_cost and ac_cost",
            path=path,
        )
    return found


def _assembled(
    entries: Iterable[Entry],
    path: Path,
    *,
    words: Vocabulary,
    features: Vocabulary,
    ids: Vocabulary,
    dense: Sequence[str] | None,
    missing: float | None,
    on_error: OnError,
) -> StoredLists:
    """Return entries as lists, and their texts; see `read_lists`."""
    one_of(*get_args(OnError)).check("on_error", on_error)
    announced: dict[str | int, Entry] = {}
    # All sentences, in their order, and those with hypotheses, be they good or not.
    sentences: dict[str | int, None] = {}
    filled: set[str | int] = set()
    faulty: set[str | int] = set()
    kept: list[Entry] = []
    places: list[int] = []
    strings: list[str] = []
    skipped: Counter[str] = Counter()
    again = ""
    for entry in entries:
        error = entry.error
        sentences.setdefault(entry.id)
        is_sentence = entry.text is None and not error
        if is_sentence:
            twice = f"the sentence {entry.id!r} is there twice; remove one of them"
            again = twice if announced.setdefault(entry.id, entry) is not entry else ""
        error = error or again
        if error and on_error == "error":
            raise InputError(error, path=entry.path, line=entry.line)
        if is_sentence:
            continue
        strings.append(entry.text or "")
        filled.add(entry.id)
        if error:
            skipped[f"{'records' if entry.whole else 'hypotheses'} with a fault"] += 1
            faulty.add(entry.id)
        else:
            kept.append(entry)
            places.append(len(strings))
    if faulty:
        skipped["sentences with a fault"] = len(faulty)
    if not kept:
        message = f"no hypothesis is left ({listed(skipped) or 'there is none'}); check the form"
        raise InputError(message, path=path)
    named = dict.fromkeys(chain.from_iterable(entry.features for entry in kept))
    for bad in (name for name in named if not WRITABLE.fullmatch(name)):
        first = next(entry for entry in kept if bad in entry.features)
        raise InputError(
            f"the feature name {bad!r} cannot be written to a weights file; call it something else",
            path=first.path,
            line=first.line,
        )
    numbered = all(isinstance(id, int) for id in sentences)
    names = list(map(str, sentences))
    if len(set(names)) < len(names):
        twice = next(name for name, n in Counter(names).items() if n > 1)
        raise InputError(f"the sentence {twice!r} is there as a number and as a text", path=path)
    numbers = list(map(int, sentences)) if numbered else ids.intern(names).tolist()
    number: dict[str | int, int] = dict(zip(sentences, numbers, strict=True))
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
    return StoredLists(
        lists,
        list(dense),
        missing != 0,
        max(numbers) + 1 if numbered else len(ids),
        skipped,
        n_entries=len(strings),
        empty=frozenset(number[id] for id in announced.keys() - filled),
        references={number[id]: list(e.references) for id, e in announced.items() if e.references},
        sources={number[id]: e.source for id, e in announced.items() if e.source is not None},
        texts=strings,
    )


def _checked(
    entries: Iterable[Entry],
    dense: Sequence[str] | None,
    missing: float | None,
    score: bool | None,
) -> Iterator[Entry]:
    """Yield entries with the features that they are to have, or with what is wrong."""
    wanted: dict[str, None] | None = None
    for entry in entries:
        if entry.error or entry.text is None:
            yield entry
            continue
        features, error = entry.features, ""
        score = not features if score is None else score
        if score and entry.score is not None:
            error = OWN_SCORE if features.get(SCORE, entry.score) != entry.score else ""
            features = {**features, SCORE: entry.score}
        if wanted is None:
            own = [name for name in features if ":" not in name]
            found = own if dense is None else names_in(Vocabulary([*features]), dense)
            wanted = dict.fromkeys(found)
        if features.keys() != wanted.keys():
            lacking = [name for name in wanted if name not in features]
            new = [n for n in features if dense is None and n not in wanted and ":" not in n]
            if missing is None and (lacking or new):
                what = f"lacks the feature {lacking[0]!r}" if lacking else f"has {new[0]!r}"
                error = (
                    f"{what}, and the first hypothesis does not; say what stands for a missing "
                    "one, with missing=VALUE"
                )
            elif missing:
                features = {**dict.fromkeys(lacking, missing), **features}
        yield entry._replace(features=features, error=error)
