"""Gains against sacrebleu's ``sentence_bleu(tokenize="none")``, in one run.

Hypotheses are 100-best lists of Multi30k's dev sentences where they lie beside the repository
(``--kbest``, cdec's format), else made up: references with some words replaced. Prints
hypotheses a second of BLEU+1 from integer ids, from strings, and of sacrebleu, their ratios,
and the time that the other gains take from ids.

    python scripts/experiments/bench/bleu_gains.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import sacrebleu
from timing import in_turn

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.metrics import (
    BleuPlusOne,
    ExternalScores,
    LiangBleu,
    MosesBleu,
    NakovBleu,
    PhrasalBleu,
    SacreBleu,
)

SHARED = Path(__file__).resolve().parents[4] / "shared"
KBEST = SHARED / "oracles/cdec/dev.k100.pop200.kbest.gz"
REFERENCES = SHARED / "data/multi30k-de-en/dev.en"
LIMIT = 200


def recorded(kbest: Path, references: Path) -> tuple[list[list[str]], list[str]]:
    """Return the hypotheses of a k-best file by sentence, and the references."""
    targets = read_lines(references)
    lists: list[list[str]] = [[] for _ in targets]
    for line in read_lines(kbest):
        index, words, _ = line.split(" ||| ", 2)
        lists[int(index)].append(words)
    return lists, targets


def synthetic(sentences: int = 1000, k: int = 100) -> tuple[list[list[str]], list[str]]:
    """Return copies of random references with four words in ten replaced."""
    generator = np.random.default_rng(0)
    targets, lists = [], []
    for _ in range(sentences):
        length = int(generator.integers(6, 20))
        target = generator.integers(0, 5000, length)
        copies = np.tile(target, (k, 1))
        replaced = generator.random(copies.shape) < 0.4
        copies[replaced] = generator.integers(0, 5000, replaced.sum())
        targets.append(" ".join(f"w{w}" for w in target))
        lists.append([" ".join(f"w{w}" for w in copy) for copy in copies])
    return lists, targets


def as_kbest(index: int, hypotheses: list[str], words: Vocabulary) -> KBest:
    """Return a k-best list without features."""
    tokens = [hypothesis.split() for hypothesis in hypotheses]
    k = len(tokens)
    return KBest(
        index=index,
        rows=Rows(np.zeros(k + 1, np.int64), np.zeros(0, np.int32), np.zeros(0)),
        token_begin=np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        tokens=words.intern([word for hypothesis in tokens for word in hypothesis]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kbest", type=Path, default=KBEST)
    parser.add_argument("--references", type=Path, default=REFERENCES)
    arguments = parser.parse_args()
    if arguments.kbest.exists():
        lists, targets = recorded(arguments.kbest, arguments.references)
    else:
        print(f"{arguments.kbest} is missing: made-up sentences")
        lists, targets = synthetic()
    words = Vocabulary()
    references = [[target.split()] for target in targets]
    metric = BleuPlusOne().bind(references, words)
    kbests = [as_kbest(i, hypotheses, words) for i, hypotheses in enumerate(lists)]
    count = sum(map(len, lists))
    length = sum(kbest.tokens.size for kbest in kbests) / count
    print(f"{count} hypotheses of {len(lists)} sentences, {length:.1f} words each")

    gains = [metric.gains(kbest) for kbest in kbests]
    # Every tenth hypothesis is enough for a steady rate of sacrebleu's.
    sample = [(i, h) for i, hypotheses in enumerate(lists) for h in range(0, len(hypotheses), 10)]

    def peer() -> list[float]:
        return [
            sacrebleu.sentence_bleu(
                lists[i][h],
                [targets[i]],
                smooth_method="add-k",
                smooth_value=1,
                tokenize="none",
            ).score
            for i, h in sample
        ]

    theirs = peer()
    works = {
        "sacrebleu": (peer, len(sample)),
        "from strings": (
            lambda: [metric.gains(as_kbest(i, h, words)) for i, h in enumerate(lists)],
            count,
        ),
        "from ids": (lambda: [metric.gains(kbest) for kbest in kbests], count),
    }
    found = in_turn({name: work for name, (work, _) in works.items()}, 3)
    each = {name: found[name].median / number for name, (_, number) in works.items()}
    worst = max(abs(100 * gains[i][h] - t) for (i, h), t in zip(sample, theirs, strict=True))

    for name, seconds in each.items():
        print(
            f"{name:13s} {1e6 * seconds:8.3f} µs a hypothesis, {1 / seconds:12,.0f} a second, "
            f"{each['sacrebleu'] / seconds:7.1f} times sacrebleu; "
            f"all {found[name].said()} ms of CPU"
        )
    print(f"largest difference in BLEU points: {worst:.1e}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for i, hypotheses in enumerate(lists):
            file.writelines(f"{i} ||| {hypothesis} ||| 0.5\n" for hypothesis in hypotheses)
        file.flush()
        others = [
            NakovBleu(smooth_unigrams=True, grounding=True),
            LiangBleu(),
            MosesBleu(),
            PhrasalBleu(),
            SacreBleu(),
            ExternalScores(file.name),
        ]
        bound = [other.bind(references, words) for other in others]
    spreads = in_turn(
        {
            type(metric).__name__: lambda b=b: [b.gains(k) for k in kbests]
            for metric, b in zip(others, bound, strict=True)
        },
        3,
    )
    for name, spread in spreads.items():
        print(f"{name:14s} {spread.said(1e6 / count, 3)} µs a hypothesis from ids")
    ratio = each["sacrebleu"] / each["from ids"]
    for name in ("from_ids", "from_strings"):
        own = each[name.replace("_", " ")]
        print(
            f"figure {name}: {each['sacrebleu'] / own:.3g} times sacrebleu's `sentence_bleu` "
            f"({1e-6 / own:.2g} million/s)"
        )
    print(f"limit from ids: {LIMIT} times; reached {ratio / LIMIT:.2f} of it")


if __name__ == "__main__":
    main()
