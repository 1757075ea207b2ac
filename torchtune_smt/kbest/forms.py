"""The forms of k-best lists that tools write: each is recognised, and read."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from torchtune_smt.core.accepts import FINITE, one_of
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.text import finite_number
from torchtune_smt.core.textio import iterate_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.formats import Format, OnError
from torchtune_smt.kbest.formats import read_lists as read_bars
from torchtune_smt.kbest.lists import KBestLists, tokens_of
from torchtune_smt.kbest.stored_lists import StoredLists, listed, merged

AnyPath = str | os.PathLike[str]

SCORE: Final = "score"
"""What the score of a list is called where it is a feature."""

_TENSOR: Final = re.compile(r"tensor\(([^,()]*)(?:,.*)?\)")
_NTH: Final = re.compile(r"([0-9]+)best_recog")


class Entry(NamedTuple):
    """A hypothesis as a file has it.

    Attributes
    ----------
    id : str
        Of its sentence.
    text : str, optional
        None: the sentence is there, and this is no hypothesis.
    features : mapping of str to float
    score : float, optional
    path, line
        Where it stands.
    error : str
        What is wrong with it.
    """

    id: str
    text: str | None
    features: Mapping[str, float]
    score: float | None
    path: Path
    line: int
    error: str = ""


class Form(NamedTuple):
    """A form of lists.

    Attributes
    ----------
    looks : callable
        Says whether a path, with the first lines of it (none of a folder), has it.
    read : callable
        Yields the entries of a path.
    """

    looks: Callable[[Path, str], bool]
    read: Callable[[Path], Iterator[Entry]]


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
) -> StoredLists:
    """Read k-best lists in whatever form.

    Lists of string ids are numbered in the order in which they come; ``lists.ids`` has the ids.

    Raises InputError: a file cannot be read, has a fault, or nothing is left of it.

    Parameters
    ----------
    path : path or sequence of paths
        Several are merged: hypotheses of a sentence follow each other.
    form : str, optional
        One of `FORMS`; told from the content by default.
    words, features : Vocabulary, optional
        Taken and added to.
    dense : sequence of str, optional
        Names of the dense features; by default those without a colon.
    missing : float, optional
        The value of a dense feature that a hypothesis lacks; by default that is a fault.
    on_error : {"error", "skip"}
        Whether a hypothesis with a fault is an error, or is left out and counted.
    score : bool, optional
        Whether the score that the list was sorted by is a feature, `SCORE`; by default where the
        first hypothesis has no other one.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(one) for one in path]
    one_of(*FORMS, *_BARS).or_null().check("form", form)
    FINITE.or_null().check("missing", missing)
    words = Vocabulary() if words is None else words
    features = Vocabulary() if features is None else features
    ids = Vocabulary()
    parts = []
    for one in paths:
        name = form or detected(one)
        if name in _BARS:
            parts.append(
                read_bars(
                    one, _BARS[name], words=words, features=features, dense=dense, missing=missing,
                    on_error=on_error, shard=True,
                )
            )  # fmt: skip
        else:
            parts.append(
                _assembled(
                    FORMS[name].read(one), one, words, features, ids, dense, missing, on_error,
                    score,
                )
            )  # fmt: skip
    return merged(parts, paths, strict=on_error == "error")


def detected(path: Path) -> str:
    """Return the form of a file, or of a folder; raise InputError if there is none."""
    first = ""
    if not path.is_dir():
        first = next((line for line in iterate_lines(path) if line.strip(" \t")), "")
    for name, form in FORMS.items():
        if form.looks(path, first):
            return name
    if path.is_dir():
        raise InputError(
            f"is a folder without lists; one of ESPnet has {{n}}best_recog in it; name the form, "
            f"one of {', '.join(FORMS)}",
            path=path,
        )
    return "cdec"


def _assembled(
    entries: Iterable[Entry],
    path: Path,
    words: Vocabulary,
    features: Vocabulary,
    ids: Vocabulary,
    dense: Sequence[str] | None,
    missing: float | None,
    on_error: OnError,
    score: bool | None,
) -> StoredLists:
    """Return entries as lists; see `read_lists`."""
    sentences: list[str] = []
    owners: list[str] = []
    kept: list[Entry] = []
    skipped: Counter[str] = Counter()
    for entry in _checked(entries, dense, missing, score):
        sentences.append(entry.id)
        if entry.error and on_error == "error":
            raise InputError(entry.error, path=entry.path, line=entry.line)
        if entry.error:
            skipped["hypotheses with a fault"] += 1
        elif entry.text is not None:
            owners.append(entry.id)
            kept.append(entry)
    if not kept:
        raise InputError(
            f"no hypothesis is left ({listed(skipped) or 'there is none'}); check the form",
            path=path,
        )
    ids.intern(list(dict.fromkeys(sentences)))
    scores = [entry.score for entry in kept]
    begin: Int64 = np.arange(len(kept) + 1)
    lists = KBestLists(
        index=ids.lookup(owners).astype(np.int64),
        begin=begin,
        rows=Rows.of_dicts([entry.features for entry in kept], features),
        features=features,
        score=None if None in scores else np.array(scores, np.float64),
        entry=begin[1:],
        ids=ids,
        **tokens_of([entry.text or "" for entry in kept], words),
    ).by_sentence()
    if dense is None:
        named = dict.fromkeys(name for entry in kept for name in entry.features)
        dense = [name for name in named if ":" not in name]
    return StoredLists(lists, list(dense), missing != 0, len(ids), skipped)


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
        if score and entry.score is not None:
            features = {**features, SCORE: entry.score}
        if wanted is None:
            wanted = {name: None for name in features if ":" not in name}
        error = ""
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
        yield entry._replace(features=features, error=error)


def number_in(text: str) -> float:
    """Return a number, which a tensor may hold; raise ValueError where it is none, or infinite."""
    match = _TENSOR.fullmatch(text)
    found = finite_number((match[1] if match else text).strip(" \t"))
    if found is None:
        raise ValueError(
            f"{text!r} is no finite number; for the logarithm of 0 write a floor, such as -100"
        )
    return found


def _json_value(value: Any) -> float:
    """Return a number of a JSON file, be it written as a text or not."""
    if isinstance(value, str):
        return number_in(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"{value!r} is no finite number; for the logarithm of 0 write a floor, such as -100"
        )
    return float(value)


def _json_line(line: str, path: Path, number: int) -> Any:
    """Return the value of a line."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise InputError(
            f"is no whole JSON value ({error}); is the file cut off? write one value a line",
            path=path,
            line=number,
        ) from None


def _read_json(path: Path) -> Iterator[Entry]:
    """Yield the entries of JSON lines."""
    for line, text in enumerate(iterate_lines(path), 1):
        if not text.strip(" \t"):
            continue
        record = _json_line(text, path, line)
        hypotheses = record.get("hypotheses") if isinstance(record, dict) else None
        if not isinstance(hypotheses, list):
            raise InputError(
                'is no record {"id": ..., "hypotheses": [{"text": ..., "features": {...}}]}',
                path=path,
                line=line,
            )
        id = str(record.get("id", line - 1))
        yield Entry(id, None, {}, None, path, line)
        for hypothesis in hypotheses:
            yield _json_entry(id, hypothesis, path, line)


def _json_entry(id: str, hypothesis: Any, path: Path, line: int) -> Entry:
    """Return a hypothesis of JSON lines."""
    try:
        if not isinstance(hypothesis, dict) or not isinstance(hypothesis.get("text"), str):
            raise ValueError(f'a hypothesis of {id!r} is no {{"text": ..., "features": ...}}')
        given = hypothesis.get("features", {})
        if not isinstance(given, dict):
            raise ValueError(f"features of {id!r} must be names and numbers")
        features = {name: _json_value(value) for name, value in given.items()}
        score = hypothesis.get("score")
        score = None if score is None else _json_value(score)
        return Entry(id, hypothesis["text"], features, score, path, line)
    except ValueError as error:
        return Entry(id, None, {}, None, path, line, str(error))


def _espnet_folders(path: Path) -> list[Path]:
    """Return the folders ``{n}best_recog`` in a folder: by n, then by the number of the job."""
    places = [path, *path.glob("output.*"), *path.glob("logdir/output.*")]
    found = [folder for place in places for folder in place.glob("*best_recog")]
    return sorted(
        (folder for folder in found if _NTH.fullmatch(folder.name)),
        key=lambda folder: (
            int(folder.name.removesuffix("best_recog")),
            [int(n) for n in re.findall("[0-9]+", folder.parent.name)],
        ),
    )


def keyed_lines(path: Path) -> dict[str, tuple[str, int]]:
    """Return the lines ``key value`` of a file: by their key, the value and the line.

    Raises InputError: a key is there twice.
    """
    found: dict[str, tuple[str, int]] = {}
    for line, text in enumerate(iterate_lines(path), 1):
        key, _, value = text.partition(" ")
        if key in found:
            raise InputError(
                f"{key!r} is there twice, in line {found[key][1]}, too; remove one of them",
                path=path,
                line=line,
            )
        found[key] = value, line
    return found


def _read_espnet(path: Path) -> Iterator[Entry]:
    """Yield the entries of ESPnet's folders ``{n}best_recog``, with text, score and scores."""
    for folder in _espnet_folders(path):
        texts = keyed_lines(folder / "text")
        single = keyed_lines(folder / "score") if (folder / "score").exists() else None
        several = keyed_lines(folder / "scores") if (folder / "scores").exists() else None
        for name, lines in (("score", single), ("scores", several)):
            if lines is None:
                continue
            for id in lines.keys() ^ texts.keys():
                here, there = ("text", name) if id in texts else (name, "text")
                raise InputError(
                    f"{id!r} is not in {folder / there}; both need the same utterances",
                    path=folder / here,
                    line=(lines if here == name else texts)[id][1],
                )
        for id, (text, line) in texts.items():
            at, score, features = folder / "text", None, {}
            try:
                if single is not None:
                    at = folder / "score"
                    value, line = single[id]
                    score = number_in(value)
                if several is not None:
                    at = folder / "scores"
                    value, line = several[id]
                    numbers = _json_line(value, at, line)
                    features = {name: _json_value(v) for name, v in numbers.items()}
                yield Entry(id, text, features, score, at, line)
            except InputError:
                raise
            except ValueError as error:
                yield Entry(id, None, {}, None, at, line, str(error))


FORMS: Final[Mapping[str, Form]] = {
    "espnet": Form(lambda path, _: bool(_espnet_folders(path)), _read_espnet),
    "json": Form(lambda _, line: line.startswith("{") and '"hypotheses"' in line, _read_json),
}
"""The forms that are read hypothesis by hypothesis, in the order in which they are looked for."""

_BARS: Final[Mapping[str, Format]] = {"cdec": "cdec", "moses": "moses"}
