"""Recordings of runs: what counts as the same, and that every difference is told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare import compare
from seen_lists import Line, ListWriter, SeenList, read_lists

K, FEATURES = 5, 7


def some_list(seed: int) -> SeenList:
    """Five hypotheses with three features each."""
    draw = np.random.default_rng(seed)
    rows = [draw.permutation(FEATURES)[:3] for _ in range(K)]
    return SeenList(
        seed,
        [f"hypothesis {h} é" for h in range(K)],
        [f"feature {i}" for i in range(FEATURES)],
        np.arange(0, 3 * K + 1, 3),
        np.concatenate(rows),
        draw.normal(size=3 * K),
        draw.normal(size=K),
    )


def numbered_otherwise(one: SeenList) -> SeenList:
    """The list with other ids of features, and rows in the order of these."""
    old = np.random.default_rng(0).permutation(FEATURES)
    feature = np.argsort(old)[one.feature]
    order = np.lexsort((feature, np.repeat(np.arange(K), 3)))
    return replace(
        one,
        names=[one.names[i] for i in old],
        feature=feature[order],
        value=one.value[order],
    )


def nudged(values: np.ndarray) -> np.ndarray:
    """One of the values has another last bit."""
    values = values.copy()
    values[2] = np.nextafter(values[2], np.inf)
    return values


def test_lists_are_read_as_they_were_written(tmp_path):
    lists = [some_list(seed) for seed in range(4)]
    writer = ListWriter(tmp_path / "lists-1", keep=True)
    writer.call(lists[:1])
    writer.call(lists[1:])
    writer.close()
    lines = [Line.parse(line) for line in (tmp_path / "lists-1.txt").read_text().splitlines()]
    assert [line[:3] for line in lines] == [(0, 0, K), (1, 1, K), (1, 2, K), (1, 3, K)]
    read = list(read_lists(tmp_path / "lists-1.npz"))
    assert [(one.sentence, *one.digests()) for one in read] == [
        (line.sentence, line.content, line.scores) for line in lines
    ]


def recorded(folder: Path, *lists: SeenList, **files: str) -> Path:
    """The recording of a run; files override those of a run that went well."""
    folder.mkdir()
    texts = {
        "weights.txt": "# of a\nx 0.5\ny -1.0\n",
        "weights-000010.txt": "x 0.25\n",
        "weights-000020.txt": "x 0.5\ny -1.0\n",
        "metrics.jsonl": '{"step": 0}\n{"step": 10, "bleu/dev": 41.5}\n',
        "dev.translations.txt": "a b\nc\n",
    }
    for name, text in (texts | files).items():
        (folder / name).write_text(text)
    writer = ListWriter(folder / "lists-1", keep=True)
    for one in lists:
        writer.call([one])
    writer.close()
    return folder


def test_the_same_is_the_same(tmp_path):
    one = some_list(1)
    before = recorded(tmp_path / "a", one)
    after = recorded(
        tmp_path / "b", numbered_otherwise(one), **{"weights.txt": "# of b\ny -1\nx 0.5\n"}
    )
    result = compare(before, after)
    assert result.differences == []
    assert str(result) == (
        "identical bit for bit (6 files, 2 weights, dev BLEU 41.50, 1 lists); "
        "comments of the weights differ"
    )


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("weights.txt", "x 0.5\nz 0.25\n", "weights differ by up to 1 (2 names only in one)"),
        (
            "weights-000020.txt",
            "x 0.5000000000000001\ny -1.0\n",
            "first after 20 sentences, the final ones by up to 1.1e-16 (0 names only in one)",
        ),
        (
            "metrics.jsonl",
            '{"step": 0}\n{"step": 10, "bleu/dev": 41.6}\n',
            "metrics.jsonl: 1 lines differ, the first is 2",
        ),
        ("groups.tsv", "1\n", "only one has groups.tsv"),
    ],
)
def test_files_that_differ_are_told(tmp_path, name, text, told):
    before, after = recorded(tmp_path / "a"), recorded(tmp_path / "b", **{name: text})
    assert told in compare(before, after).differences


def test_lists_that_differ_are_told(tmp_path):
    lists = [some_list(seed) for seed in range(3)]
    before = recorded(tmp_path / "a", *lists)
    # In the last bit.
    changed = [lists[0], replace(lists[1], score=nudged(lists[1].score))]
    changed.append(replace(lists[2], value=nudged(lists[2].value)))
    (told,) = compare(before, recorded(tmp_path / "b", *changed)).differences
    assert told.startswith(
        "lists-1: 2 of 3 lists differ, 1 of them in content, the first in call 1"
    )
    assert "sentence 1 (scores), the scores of the others by up to 1" in told
