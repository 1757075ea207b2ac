"""What differs between two recordings of a run.

- weights that the run has written, by name: the largest difference, and how many only one has
- weights after each epoch or iteration: the first that differ, and how far the final ones do
- the best BLEU on dev
- the lists: the first that differs, in its content (words or features) or in the bits of scores
  alone, and how far scores of the same content are apart, where whole lists were recorded
- the order of features, and lines of all other files

Comments in weights files, and how sentences are grouped into calls of the decoder, may differ.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from seen_lists import Line, read_lists

Lines = Sequence[str]


class Result(NamedTuple):
    """What differs; what differs and may; how much was compared."""

    differences: list[str]
    notes: list[str]
    amount: list[str]

    def __str__(self) -> str:
        same = [] if self.differences else [f"identical bit for bit ({', '.join(self.amount)})"]
        return "; ".join([*same, *self.differences, *self.notes])


def compare(before: Path, after: Path) -> Result:
    """Compare the folders of a run in two recordings."""
    result = Result([], [], [])
    recorded = [_recorded(folder) for folder in (before, after)]
    alone = sorted(recorded[0] ^ recorded[1])
    result.differences.extend([f"only one has {', '.join(alone)}"] if alone else [])
    names = sorted(recorded[0] & recorded[1])
    result.amount.append(f"{len(names)} files")
    texts = {name: (_lines(before / name), _lines(after / name)) for name in names}
    if "weights.txt" in texts:
        _compare_weights(*texts.pop("weights.txt"), result)
    _compare_steps({n: texts.pop(n) for n in names if n.startswith("weights-")}, result)
    if "metrics.jsonl" in texts:
        _compare_scores(*texts["metrics.jsonl"], result)
    for name in names:
        if name.startswith("lists-"):
            pair = texts.pop(name)
            result.amount.extend([f"{len(pair[0]):,} lists"] if pair[0] else [])
            if pair[0] != pair[1]:
                _compare_lists((before / name, after / name), *pair, result)
    for name, (old, new) in texts.items():
        differing = [i for i, (a, b) in enumerate(zip_longest(old, new), 1) if a != b]
        if differing:
            text = f"{name}: {len(differing):,} lines differ, the first is {differing[0]:,}"
            result.differences.append(text)
    return result


def _recorded(folder: Path) -> set[str]:
    """Return the names of the files that are compared."""
    endings = (".txt", ".txt.gz", ".tsv", ".jsonl")
    return {path.name for path in folder.iterdir() if path.name.endswith(endings)}


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return text.removesuffix("\n").split("\n") if text else []


def _compare_weights(old: Lines, new: Lines, result: Result) -> None:
    """Compare weights files by names and values."""
    apart = _apart(old, new)
    result.amount.append(f"{len(_values(old)):,} weights")
    if apart:
        result.differences.append(f"weights differ {apart}")
    comments = [[line for line in lines if line.startswith("#")] for lines in (old, new)]
    if comments[0] != comments[1]:
        result.notes.append("comments of the weights differ")


def _compare_steps(texts: dict[str, tuple[Lines, Lines]], result: Result) -> None:
    """Compare the weights after each epoch or iteration."""
    differing = [name for name, (old, new) in texts.items() if _apart(old, new)]
    if differing:
        step = int(differing[0].removeprefix("weights-").removesuffix(".txt"))
        final = _apart(*texts[max(texts)]) or "not at all"
        result.differences.append(f"first after {step:,} sentences, the final ones {final}")


def _apart(old: Lines, new: Lines) -> str:
    """Return how far weights are apart; empty if not at all."""
    before, after = _values(old), _values(new)
    if before == after:
        return ""
    largest = max(abs(before.get(n, 0.0) - after.get(n, 0.0)) for n in before.keys() | after.keys())
    alone = len(before.keys() ^ after.keys())
    return f"by up to {largest:.2g} ({alone:,} names only in one)"


def _values(lines: Lines) -> dict[str, float]:
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def _compare_scores(old: Lines, new: Lines, result: Result) -> None:
    """Tell the best BLEU on dev of both."""
    best = [
        max((json.loads(line).get("bleu/dev", 0.0) for line in lines), default=0.0)
        for lines in (old, new)
    ]
    if best[0] == best[1]:
        result.amount.append(f"dev BLEU {best[0]:.2f}")
    if result.differences:
        result.differences.append(f"best dev BLEU {best[0]:.2f} and {best[1]:.2f}")


def _compare_lists(paths: tuple[Path, Path], old: Lines, new: Lines, result: Result) -> None:
    """Compare what was seen, list by list."""
    lines = [[Line.parse(text) for text in texts] for texts in (old, new)]
    name = paths[0].stem
    if len(old) != len(new):
        result.differences.append(f"{name}: {len(old):,} and {len(new):,} lists")
    both = list(zip(*lines, strict=False))
    differing = [i for i, (a, b) in enumerate(both) if a[1:] != b[1:]]
    if not differing:
        if len(old) == len(new):
            result.notes.append(f"{name}: sentences are grouped into calls otherwise")
        return
    first = both[differing[0]][0]
    content = [i for i in differing if both[i][0][:-1] != both[i][1][:-1]]
    what = "content" if differing[0] in content else "scores"
    text = (
        f"{name}: {len(differing):,} of {len(both):,} lists differ, {len(content):,} of them in "
        f"content, the first in call {first.call:,}, sentence {first.sentence:,} ({what})"
    )
    whole = [path.with_suffix(".npz") for path in paths]
    if all(path.is_file() for path in whole):
        unlike = set(content)
        pairs = enumerate(zip(*map(read_lists, whole), strict=False))
        apart = [np.abs(a.score - b.score).max(initial=0) for i, (a, b) in pairs if i not in unlike]
        text += f", the scores of the others by up to {max(apart, default=0.0):.2g}"
    result.differences.append(text)
