"""The oracle of k-best lists against all choices there are."""

from itertools import product

import numpy as np
import pytest

from torchtune_smt.evaluation import oracle_bleu
from torchtune_smt.metrics.corpus import corpus_bleu


def make_lists(seed, n, k):
    """Return lists of noisy copies of references, and these."""
    generator = np.random.default_rng(seed)
    words = [f"W{i}" for i in range(9)]
    references, lists = [], []
    for _ in range(n):
        row = [list(generator.choice(words, generator.integers(4, 9))) for _ in range(2)]
        references.append([" ".join(r) for r in row])
        entries = []
        for _ in range(k):
            kept = [w for w in row[generator.integers(2)] if generator.random() < 0.8]
            noise = [str(generator.choice(words)) if generator.random() < 0.2 else w for w in kept]
            entries.append(" ".join(noise))
        lists.append(entries)
    return lists, references


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_one_sentence_is_better(seed):
    lists, references = make_lists(seed, 4, 4)
    found = oracle_bleu(lists, references)

    def bleu(chosen):
        texts = [entries[h] for entries, h in zip(lists, chosen, strict=True)]
        return corpus_bleu(texts, references).score

    chosen = tuple(found.chosen.tolist())
    assert found.score == pytest.approx(bleu(chosen))
    for s, h in product(range(4), range(4)):
        assert bleu((*chosen[:s], h, *chosen[s + 1 :])) <= found.score + 1e-6
    best = max(bleu(choice) for choice in product(range(4), repeat=4))
    assert bleu((0, 0, 0, 0)) <= found.score <= best + 1e-6
    # Where no climb has stopped early, which is nearly always.
    assert found.score > best - 2


def test_references_in_the_lists_are_found():
    lists, references = make_lists(1, 30, 5)
    planted = [[*entries, row[0]] for entries, row in zip(lists, references, strict=True)]
    found = oracle_bleu(planted, references)
    assert found.score == pytest.approx(100)


@pytest.mark.parametrize("row", [[""], ["", ""], ["", "W1 W2"]])
def test_references_that_are_empty(row):
    lists, references = make_lists(4, 5, 3)
    references = [[*other, *other][: len(row)] for other in references]
    references[2] = row
    found = oracle_bleu(lists, references)
    chosen = [entries[h] for entries, h in zip(lists, found.chosen.tolist(), strict=True)]
    assert found.score == pytest.approx(corpus_bleu(chosen, references).score)


def test_text_is_prepared_as_for_the_score():
    lists, references = make_lists(2, 10, 3)
    lower = [[line.lower() for line in entries] for entries in lists]
    assert oracle_bleu(lower, references).score < oracle_bleu(lists, references).score
    same = oracle_bleu(lower, references, lowercase=True).score
    assert same == oracle_bleu(lists, references).score
