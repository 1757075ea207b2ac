"""Minimum Bayes risk on an n-best list: BLEU by scale, and speed against all pairs of strings.

    python scripts/experiments/bench/minimum_risk.py LIST REFERENCE [REFERENCE ...]
        [--scales 0.5 1 2]

The list has the model scores that posteriors are made of. The time is that of sacrebleu's sentence
BLEU as gain, which sacrebleu itself computes for all pairs of the first lists, to compare with.
"""

from __future__ import annotations

import argparse

import sacrebleu
from timing import cpu

from torchtune_smt import corpus_bleu, minimum_risk
from torchtune_smt.core.textio import read_lines
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.metrics import BleuPlusOne, NakovBleu, SacreBleu

METRICS = {"sacrebleu": SacreBleu(), "bleu_plus_one": BleuPlusOne(), "nakov": NakovBleu()}


def bleu(lists: KBestLists, references: list[list[str]]) -> float:
    """Return corpus BLEU of the first entries."""
    return corpus_bleu([kbest.text(0) for kbest in lists], references).score


def all_pairs(lists: KBestLists) -> float:
    """Return how much CPU time sacrebleu takes for all pairs of all lists, in seconds."""
    start = cpu()
    for kbest in lists:
        texts = kbest.texts()
        for text in texts:
            for other in texts:
                sacrebleu.sentence_bleu(text, [other], tokenize="none")
    return cpu() - start


def main() -> None:
    """Read the list, choose anew by each metric and scale, and print what comes out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list")
    parser.add_argument("references", nargs="+")
    parser.add_argument("--scales", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0, 4.0])
    options = parser.parse_args()
    lists = read_lists(options.list).lists
    columns = [read_lines(path) for path in options.references]
    references = [list(row) for row in zip(*columns, strict=True)]
    print(f"{len(lists):,} lists, {lists.n_hypotheses:,} entries")
    print(f"as they are: BLEU {bleu(lists, references):.2f}")
    minimum_risk(lists.between(0, 1), SacreBleu())  # compiles
    start = cpu()
    minimum_risk(lists, SacreBleu())
    seconds = cpu() - start
    few = lists.between(0, 3)
    pairs = all_pairs(few) / len(few) * len(lists)
    ratio = pairs / seconds
    print(f"{seconds:.1f} s of CPU; all pairs by sacrebleu: {pairs:,.0f} s ({ratio:,.0f} times)")
    for name, metric in METRICS.items():
        for scale in options.scales:
            score = bleu(minimum_risk(lists, metric, scale, 1), references)
            print(f"{name}, scale {scale:g}: BLEU {score:.2f}")


if __name__ == "__main__":
    main()
