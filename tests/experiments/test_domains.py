"""Domains of a corpus by k-means, and the sets that are made of them."""

import domains
import numpy as np
import pytest
from domains import FOLDER, bags, count_words, kmeans, read_split, similarities


def planted(sizes: list[int], seed: int) -> tuple[list[list[str]], np.ndarray]:
    """Sentences of domains with ten words of their own each, and some that all have."""
    generator = np.random.default_rng(seed)
    domain = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    sentences = []
    for d in domain.tolist():
        own = [f"w{d}.{i}" for i in generator.integers(0, 10, 5)]
        sentences.append([*own, *(f"all{i}" for i in generator.integers(0, 6, 5))])
    return sentences, domain


def test_planted_domains_are_found_largest_first():
    sentences, domain = planted([60, 150, 90], 3)
    words = count_words(sentences, 0.9)
    rows = bags(sentences, words)
    centres = kmeans(rows, len(words), 3, 1)
    found = similarities(rows, centres).argmax(axis=1)
    assert found.tolist() == np.array([2, 0, 1])[domain].tolist()


def test_vectors_and_centres_are_what_the_formulas_say():
    """A centre is the direction of the sum of its sentences, each of which is nearest to it."""
    sentences, _ = planted([40, 30], 5)
    sentences += [[], ["never", "seen"]]
    words = count_words(sentences, 0.9)
    assert "never" not in words
    rows = bags(sentences, words)
    dense = np.zeros((len(sentences), len(words)))
    for row, sentence in zip(dense, sentences, strict=True):
        for word in {word for word in sentence if word in words}:
            idf = np.log(len(sentences) / sum(word in other for other in sentences))
            row[words[word][0]] = (1 + np.log(sentence.count(word))) * idf
        row /= max(np.linalg.norm(row), 1e-300)
    centres = kmeans(rows, len(words), 4, 2)
    cosine = similarities(rows, centres)
    assert cosine == pytest.approx(dense @ centres.T, abs=1e-12)
    label = cosine.argmax(axis=1)
    for c, centre in enumerate(centres):
        total = dense[label == c].sum(axis=0)
        assert centre == pytest.approx(total / np.linalg.norm(total), abs=1e-12)
    assert np.bincount(label).tolist() == sorted(np.bincount(label).tolist(), reverse=True)


def test_the_committed_domains_are_those_that_the_script_makes(tmp_path):
    split = domains.split_corpus("example", domains.DOMAINS, 1)
    domains.write_split(tmp_path / "example.txt", "example", split)
    assert (tmp_path / "example.txt").read_text() == (FOLDER / "example.txt").read_text()


@pytest.mark.parametrize(("name", "lines"), [("multi30k", 29_000), ("fisher", 18_890)])
def test_each_line_has_one_domain(name, lines):
    split = read_split(FOLDER / f"{name}.txt")
    assert list(split) == list(domains.SETS[name])
    for one, found in split.items():
        every = np.concatenate(found)
        assert len(found) == domains.DOMAINS
        assert np.unique(every).size == every.size
        # Those without words have none, and pairs that are too long to train on have one.
        assert one != "train" or every.size == lines
