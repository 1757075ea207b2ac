"""Domains of a corpus, one of which is kept apart.

    python scripts/experiments/reproduce/domains.py CORPUS

Domains are the clusters that k-means makes of the source sentences of the training data; sentences
of other sets belong to the nearest one. `domains/CORPUS.txt` has the lines of each, so the split
stays the same wherever it is used. The last domain is the smallest: nothing is built from it or
tuned on it, and its sentences of dev, devtest and test are the test set out of the domain.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from tuned import configuration

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.textio import atomic_folder, atomic_writer, read_lines
from torchtune_smt.data.bitext import Corpus, write_corpus
from torchtune_smt.data.dataset import Dataset

FOLDER: Final = Path(__file__).parent / "domains"
OUT: Final = "out"
"""The test set out of the domain."""
LABELS: Final = "train.domains"
SETS: Final = {
    "multi30k": ("train", "dev", "devtest", "test"),
    "fisher": ("train", "dev", "devtest", "test"),
    "example": ("train", "dev", "test"),
}
DOMAINS: Final = 4
# Words of fewer training sentences, and of a larger share of them, say nothing of a domain.
LEAST: Final = 5
MOST: Final = 0.02
RESTARTS: Final = 10
ROUNDS: Final = 100

Split = dict[str, list[Int64]]
"""The lines (from 1, ascending) of each domain, by set."""


class Bags(NamedTuple):
    """Sentences as unit vectors of tf-idf values, in CSR form.

    Attributes
    ----------
    begin : int64 [n + 1]
    word : int64
    value : float64
        Sentences without any known word have none.
    """

    begin: Int64
    word: Int64
    value: Float64

    @property
    def sentence(self) -> Int64:
        """The sentence of each value."""
        return np.repeat(np.arange(self.begin.size - 1), np.diff(self.begin))


def count_words(
    sentences: Sequence[Sequence[str]], share: float = MOST
) -> dict[str, tuple[int, float]]:
    """Return the number and the idf, log(n / sentences with it), of each word that is kept."""
    found = Counter(word for sentence in sentences for word in set(sentence))
    most = share * len(sentences)
    kept = sorted(word for word, count in found.items() if LEAST <= count <= most)
    return {word: (i, float(np.log(len(sentences) / found[word]))) for i, word in enumerate(kept)}


def bags(sentences: Sequence[Sequence[str]], words: Mapping[str, tuple[int, float]]) -> Bags:
    """Return sentences as vectors: (1 + log tf) · idf of each word, divided by their length."""
    sizes, number, value = [], [], []
    for sentence in sentences:
        counts = Counter(word for word in sentence if word in words)
        row = np.array([(1 + np.log(tf)) * words[word][1] for word, tf in counts.items()])
        length = np.sqrt((row**2).sum())
        if length > 0:
            number += [words[word][0] for word in counts]
            value += (row / length).tolist()
        sizes.append(len(counts) if length > 0 else 0)
    return Bags(offsets(sizes), np.array(number, np.int64), np.array(value, np.float64))


def similarities(rows: Bags, centres: Float64) -> Float64:
    """Return the cosine of each sentence and each centre (unit vectors), float64 [n, k]."""
    sentence, n = rows.sentence, rows.begin.size - 1
    found = [np.bincount(sentence, rows.value * c[rows.word], minlength=n) for c in centres]
    return np.stack(found, axis=1)


def kmeans(rows: Bags, words: int, k: int, seed: int) -> Float64:
    """Return the centres (unit vectors, float64 [k, words]) of spherical k-means, largest first.

    Of `RESTARTS` starts (k-means++) the one with the largest sum of cosines is taken.
    """
    generator = np.random.default_rng(seed)
    best, best_sum = np.empty((0, words)), -np.inf
    for _ in range(RESTARTS):
        centres = _start(rows, words, k, generator)
        label = np.full(rows.begin.size - 1, -1)
        for _ in range(ROUNDS):
            cosine = similarities(rows, centres)
            before, label = label, cosine.argmax(axis=1)
            if np.array_equal(before, label):
                break
            centres = _means(rows, words, label, centres)
        total = float(cosine.max(axis=1).sum())
        if total > best_sum:
            order = np.argsort(-np.bincount(label, minlength=k), kind="stable")
            best, best_sum = centres[order], total
    return best


def _start(rows: Bags, words: int, k: int, generator: np.random.Generator) -> Float64:
    """Return k sentences as centres, each drawn by its distance from those before it."""
    n = rows.begin.size - 1
    weight = (np.diff(rows.begin) > 0).astype(np.float64)
    centres = np.zeros((k, words))
    for c in range(k):
        chosen = generator.choice(n, p=weight / weight.sum())
        own = slice(rows.begin[chosen], rows.begin[chosen + 1])
        centres[c, rows.word[own]] = rows.value[own]
        nearest = similarities(rows, centres[: c + 1]).max(axis=1)
        weight = np.where(np.diff(rows.begin) > 0, np.maximum(1 - nearest, 0), 0)
    return centres


def _means(rows: Bags, words: int, label: Int64, before: Float64) -> Float64:
    """Return the directions of the clusters' sums; an empty cluster stays where it was."""
    centres = before.copy()
    of = label[rows.sentence]
    for c in range(len(centres)):
        own = of == c
        total = np.bincount(rows.word[own], rows.value[own], minlength=words)
        if total.any():
            centres[c] = total / np.sqrt((total**2).sum())
    return centres


def split_corpus(name: str, k: int, seed: int) -> Split:
    """Return the lines of each domain of a corpus."""
    dataset = dataset_of(name)
    corpora = {one: read_set(dataset, one) for one in SETS[name]}
    lower = {
        one: [[word.lower() for word in sentence] for sentence in corpus.source]
        for one, corpus in corpora.items()
    }
    words = count_words(lower["train"])
    centres = kmeans(bags(lower["train"], words), len(words), k, seed)
    split: Split = {}
    for one, corpus in corpora.items():
        label = similarities(bags(lower[one], words), centres).argmax(axis=1)
        lines = np.array(corpus.lines, np.int64)
        split[one] = [lines[label == c] for c in range(k)]
    return split


def write_split(path: Path, name: str, split: Split) -> None:
    """Write the lines of each domain, a row for each set and domain."""
    with atomic_writer(path) as file:
        file.write(
            f"# {name}: set, domain and its lines; see scripts/experiments/reproduce/domains.py\n"
        )
        for one, domains in split.items():
            for number, lines in enumerate(domains, 1):
                file.write(f"{one}\t{number}\t{' '.join(map(str, lines.tolist()))}\n")


def read_split(path: Path) -> Split:
    """Return what `write_split` wrote.

    Raises
    ------
    InputError
        The file is missing, or bad.
    """
    split: Split = {}
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#"):
            continue
        try:
            one, domain, lines = line.split("\t")
            domains = split.setdefault(one, [])
            domains.append(np.array(lines.split(), np.int64))
            if int(domain) != len(domains):
                raise ValueError
        except ValueError:
            raise InputError("is no set, domain and lines", path=path, line=number) from None
    return split


def write_data(name: str, folder: Path) -> None:
    """Write a corpus without its last domain to a folder, and that domain's test set.

    Its sets have the names that they have in the corpus; besides there are `OUT` and, for each
    line of train, its domain in the file `LABELS`. Nothing is done where all is there.
    """
    path = FOLDER / f"{name}.txt"
    text = path.read_text("utf-8")
    copy = folder / path.name
    if copy.is_file() and copy.read_text("utf-8") == text:
        return
    split = read_split(path)
    dataset = dataset_of(name)
    languages = dataset.source_language, dataset.target_language
    with atomic_folder(folder) as beside:
        out = Corpus([], [], [])
        for one, domains in split.items():
            corpus = read_set(dataset, one)
            domain = {int(line): d for d, lines in enumerate(domains, 1) for line in lines}
            if domain.keys() != set(corpus.lines):
                raise InputError(f"has other lines than {one} of {name}", path=path)
            labels = [domain[line] for line in corpus.lines]
            last = len(domains)
            kept = [i for i, label in enumerate(labels) if label != last]
            write_set(beside, one, chosen(corpus, kept), languages)
            if one == "train":
                with atomic_writer(beside / LABELS) as file:
                    file.writelines(f"{labels[i]}\n" for i in kept)
            else:
                apart = [i for i, label in enumerate(labels) if label == last]
                out = out.followed_by(chosen(corpus, apart))
        write_set(beside, OUT, out, languages)
        (beside / path.name).write_text(text, "utf-8")


def dataset_of(name: str) -> Dataset:
    """Return the data of a corpus."""
    return Dataset(**configuration([f"data={name}"]).data)


def read_set(dataset: Dataset, name: str) -> Corpus:
    """Return a set by its name, with pairs that are too long for training."""
    return replace(dataset, test=name).require("test")


def chosen(corpus: Corpus, numbers: Sequence[int]) -> Corpus:
    """Return some sentences of a set."""
    return Corpus(
        [corpus.source[i] for i in numbers],
        [corpus.references[i] for i in numbers],
        [corpus.lines[i] for i in numbers],
    )


def write_set(folder: Path, name: str, corpus: Corpus, languages: tuple[str, str]) -> list[Path]:
    """Write a set to a folder; return its files, the source first."""
    source, target = (folder / f"{name}.{language}" for language in languages)
    n = len(corpus.references[0])
    targets = [target] if n == 1 else [Path(f"{target}.{i}") for i in range(n)]
    write_corpus(corpus, source, targets)
    return [source, *targets]


def write_sets(folder: Path, dataset: Dataset, sets: Mapping[str, Corpus]) -> None:
    """Write sets of a dataset to a folder that is not there yet, all or none."""
    with atomic_folder(folder) as beside:
        for one, corpus in sets.items():
            write_set(beside, one, corpus, (dataset.source_language, dataset.target_language))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("corpus", choices=list(SETS))
    parser.add_argument("--domains", type=int, default=DOMAINS, metavar="K")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE", help="(default: the committed one)")
    given = parser.parse_args()
    try:
        split = split_corpus(given.corpus, given.domains, given.seed)
        write_split(given.output or FOLDER / f"{given.corpus}.txt", given.corpus, split)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for one, domains in split.items():
        print(f"{one}: {', '.join(f'{lines.size:,}' for lines in domains)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
