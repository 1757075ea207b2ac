"""Small lists, the files that hold them, and runs on these."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtune_smt import KBestLists, ListSet
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.kbest.lists import KBest

# Of a run of `train` on stored lists alone: `decoder.dev`, `data.dev` and the folder are missing.
ON_LISTS = [
    *("decoder=kbest_files", "data=files", "data.name=x", "data.source_language=de"),
    *("data.target_language=en", "data.train=null", "data.test=null"),
]


def put(
    folder: Path, files: Mapping[str, str | bytes | Mapping[str, float] | Iterable[object]]
) -> Path:
    """Write texts (packed where they are called .gz), weights, or lines.

    Returns the folder, or the only thing at its top.
    """
    for name, what in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, Mapping):
            what = [f"{feature} {value!r}" for feature, value in what.items()]
        if not isinstance(what, str | bytes):
            what = "".join(f"{line}\n" for line in what)
        if isinstance(what, str):
            what = gzip.compress(what.encode()) if path.suffix == ".gz" else what.encode()
        path.write_bytes(what)
    tops = {name.split("/")[0] for name in files}
    return folder / tops.pop() if len(tops) == 1 else folder


def weights_of(path: Path) -> dict[str, float]:
    """Return the weights of a file."""
    names, values = read_weights(path)
    return names.named(range(len(names)), values)


def edits(a: Any, b: Any) -> int:
    """The edit distance, by its definition."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def listed(
    index: int,
    rows: Sequence[Mapping[int, float]],
    gain: Sequence[float] | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
    **more: Any,
) -> KBest:
    """A k-best list of rows {feature: value}, with gains, and words by their ids, if any."""
    entries = [sorted(row.items()) for row in rows]
    feature, value = (np.array([entry[i] for row in entries for entry in row]) for i in (0, 1))
    words = {}
    if tokens is not None:
        flat = np.array([word for hypothesis in tokens for word in hypothesis], np.int32)
        words = {"token_begin": offsets([len(one) for one in tokens]), "tokens": flat}
    return KBest(
        index=index,
        rows=Rows(offsets([len(row) for row in entries]), feature.astype(np.int32), value + 0.0),
        gain=None if gain is None else np.array(gain, np.float64),
        **words,
        **more,
    )


def kbest_of(index: int, hypotheses: list[list[str]], words: Vocabulary) -> KBest:
    """A k-best list that has tokens only."""
    return listed(index, [{}] * len(hypotheses), tokens=[words.intern(h) for h in hypotheses])


def as_set(
    name: str,
    records: list[dict[str, Any]],
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
    groups: bool = False,
) -> ListSet:
    """Return the lists of records, which have ids and a reference; an id may begin with a group."""
    words, names = vocabularies or (Vocabulary(), Vocabulary())
    references = [[one["references"][0].split()] for one in records]
    speakers = [one["id"].partition("-")[0] for one in records] if groups else None
    return ListSet(
        name, KBestLists.of_records(records, words=words, names=names), references, speakers
    )
