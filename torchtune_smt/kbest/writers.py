"""Writers of k-best lists: as lines, or in the form that they were read in, in another order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from torchtune_smt.core.text import split_fields
from torchtune_smt.core.textio import iterate_lines, read_lines
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.readers import (
    FAIRSEQ,
    espnet_folders,
    hypo2trans_records,
    json_records,
    kaldi_files,
    kaldi_lines,
    side_by_side,
    sockeye_lists,
    sockeye_records,
)

_TAB: Final = "\t"

# Of any hypothesis of a list, by its entry: the entries and new scores of the list, in order.
_Order = Mapping[int, Sequence[tuple[int, float]]]


def _pairs(kbest: KBest) -> list[tuple[int, float]]:
    """Return the entries and scores of a list."""
    assert kbest.entry is not None and kbest.score is not None
    return list(zip(kbest.entry.tolist(), kbest.score.tolist(), strict=True))


def _order(lists: KBestLists) -> _Order:
    return {entry: pairs for pairs in map(_pairs, lists) for entry, _ in pairs}


def nbest_lines(kbest: KBest, texts: Sequence[str], dense: Sequence[str] = ()) -> Iterator[str]:
    """Yield a list, with scores, as lines of an n-best list, with features as cdec has them.

    `texts` stand for the words of the hypotheses. Features that are `dense` come first, and are
    written where they are 0, too.

    Raises ValueError: the list has no names of features, or no scores.
    """
    if kbest.features is None or kbest.score is None:
        raise ValueError("only lists with names of features and scores can be written")
    rows, n, width = kbest.rows, len(kbest), len(dense)
    ids = kbest.features.lookup(list(dense))
    # The column of each feature; behind those that are dense, which the last place stands for, -1.
    column = np.full(ids.max(initial=-1) + 2, -1)
    column[ids[ids >= 0]] = np.flatnonzero(ids >= 0)
    place = column[np.minimum(rows.feature, column.size - 1)]
    row = rows.owner
    first = np.zeros((n, width))
    first[row[place >= 0], place[place >= 0]] = rows.value[place >= 0]
    others = place < 0
    # Hypotheses of one list have many values in common: each becomes text once. By their bits, as
    # zeros have signs.
    values = np.concatenate([first.ravel(), rows.value[others]]).view(np.int64)
    distinct, which = np.unique(values, return_inverse=True)
    written = np.array([f"{value:.10g}" for value in distinct.view(np.float64).tolist()], object)
    text = written[which].tolist()
    names = kbest.features.names(rows.feature[others].tolist())
    more = [f"{name}={value}" for name, value in zip(names, text[n * width :], strict=True)]
    ends = np.searchsorted(row[others], np.arange(n + 1)).tolist()
    form = " ".join(f"{name.replace('%', '%%')}=%s" for name in dense)
    scores = kbest.score.tolist()
    for h, (begin, end) in enumerate(pairwise(ends)):
        features = [form % tuple(text[h * width : (h + 1) * width])] if dense else []
        said = " ".join(features + more[begin:end])
        yield f"{kbest.index} ||| {texts[h]} ||| {said} ||| {scores[h]:.10g}\n"


def bar_lines(
    lists: KBestLists, text: Sequence[bytearray], first: int, total: int
) -> Iterator[str]:
    """Yield the lines of a file in the order of the lists, with their scores.

    lists: with scores; the entry of a hypothesis is its line, from 1.
    text: lines of the file, from line `first` on.
    total: the number of the field that has the score, from 0.
    """
    scores = [] if lists.score is None else lists.score.tolist()
    for line, score in zip(lists.entries().tolist(), scores, strict=True):
        fields = split_fields(text[line - first].decode("utf-8"))
        fields[total] = f" {score:.10g} " if len(fields) > total + 1 else f" {score:.10g}"
        yield "|||".join(fields) + "\n"


def _chosen(order: _Order, first: int, size: int) -> Sequence[tuple[int, float]]:
    """Return the place, from 0, and score of the hypotheses of a list that are written."""
    entries = range(first, first + size)
    found: Sequence[tuple[int, float]] = next((order[e] for e in entries if e in order), ())
    return [(entry - first, score) for entry, score in found]


def _json_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    first, order = 1, _order(lists)
    for id, value, _, error in json_records(path):
        old = value.get("hypotheses", [])
        new = _chosen(order, first, len(old))
        record = value or {"id": id}
        record["hypotheses"] = [{**old[place], "score": score} for place, score in new]
        # A record with a fault counts as one hypothesis.
        first += 1 if error else len(old)
        yield json.dumps(record, ensure_ascii=False) + "\n"


def _sockeye_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    first, order = 1, _order(lists)
    for id, value, _, error in sockeye_records(path):
        old, _ = ([], []) if error else sockeye_lists(value)
        new = _chosen(order, first, len(old))
        first += 1 if error else len(old)
        texts, costs = [old[place] for place, _ in new], [-score for _, score in new]
        record = value or {"sentence_id": int(id) + 1, "translations": []}
        if "translations" in record:
            record |= {"translations": texts, "scores": [[cost] for cost in costs]}
        if texts:
            record |= {"translation": texts[0], "score": costs[0]}
        yield json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"


def _hypo2trans_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    first, order, records = 1, _order(lists), []
    for _, value, _, error in hypo2trans_records(path):
        old = value.get("input", [])
        records.append({**value, "input": [old[i] for i, _ in _chosen(order, first, len(old))]})
        first += 1 if error else len(old)
    yield json.dumps(records, ensure_ascii=False, indent=1) + "\n"


def _fairseq_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    """Yield what is said of a source, and then of its hypotheses, in their new order."""
    heads: dict[int, list[str]] = {}
    blocks: list[list[str]] = []
    for text in iterate_lines(path):
        match = FAIRSEQ.match(text)
        if match and match[1] in "STI":
            heads.setdefault(int(match[2]), []).append(text)
        elif match and match[1] == "H":
            blocks.append([text])
        elif match and blocks:
            blocks[-1].append(text)
    for kbest in lists:
        yield from (line + "\n" for line in heads.get(kbest.index, []))
        for entry, score in _pairs(kbest):
            for line in blocks[entry - 1]:
                fields = line.split("\t")
                if line[0] in "HD":
                    fields[1] = f"{score / math.log(2):.10g}"
                yield "\t".join(fields) + "\n"


def _lines(rescored: Callable[[str, float], str]) -> Callable[[Path, KBestLists], Iterator[str]]:
    """Return what yields the lines of a file in their new order, with new scores."""

    def write(path: Path, lists: KBestLists) -> Iterator[str]:
        old = read_lines(path)
        for entry, score in (pair for kbest in lists for pair in _pairs(kbest)):
            yield rescored(old[entry - 1], score) + "\n"

    return write


WRITERS: Final[Mapping[str, Callable[[Path, KBestLists], Iterator[str]]]] = {
    "json": _json_lines,
    "sockeye": _sockeye_lines,
    "hypo2trans": _hypo2trans_lines,
    "fairseq": _fairseq_lines,
    "ctranslate2": _lines(lambda line, score: f"{score:.10g} |||" + line.partition(" |||")[2]),
    "nemo": _lines(lambda line, score: f"{line.rpartition(_TAB)[0]}{_TAB}{score:.10g}"),
    "lines": _lines(lambda line, _: line),
}
"""What writes lists with scores, and entries as they were read, anew: of each form."""


def _espnet_files(path: Path, lists: KBestLists) -> dict[str, list[str]]:
    """Return the lines of ESPnet's files ``{n}best_recog/text`` and ``score``, of one job."""
    names = ("text", "score", "scores")
    keys = [
        (id, values[0][0] if values[0] else "")
        for folder in espnet_folders(path)
        for id, values, _ in side_by_side([folder / n for n in names if (folder / n).exists()])
    ]
    files: dict[str, list[str]] = {}
    for kbest in lists:
        for n, (entry, score) in enumerate(_pairs(kbest), 1):
            id, text = keys[entry - 1]
            files.setdefault(f"{n}best_recog/text", []).append(f"{id} {text}\n")
            files.setdefault(f"{n}best_recog/score", []).append(f"{id} {score:.10g}\n")
    return files


def _kaldi_files(path: Path, lists: KBestLists) -> dict[str, list[str]]:
    """Return the lines of Kaldi's files, with new numbers behind the utterances."""
    found = kaldi_files(path)
    assert found is not None
    files = [found[0], *found[1].values()]
    old = kaldi_lines(files)
    rows = [
        (f"{old[entry - 1][0].rpartition('-')[0]}-{n}", old[entry - 1][1])
        for kbest in lists
        for n, (entry, _) in enumerate(_pairs(kbest), 1)
    ]
    return {
        file.name.removesuffix(".gz"): [
            f"{key} {value[0]}\n" for key, values in rows if (value := values[column])
        ]
        for column, file in enumerate(files)
    }


FOLDER_WRITERS: Final[Mapping[str, Callable[[Path, KBestLists], dict[str, list[str]]]]] = {
    "espnet": _espnet_files,
    "kaldi": _kaldi_files,
}
"""The same of forms that are folders: the lines of each file."""
