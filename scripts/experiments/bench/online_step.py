"""What one online step costs outside decoding: gains, pairs, margins, loss, gradient, step.

Runs mini-batches of 20 sentences on synthetic k-best lists (k = 100, some 60 features a row out
of 10^6, as derivations of one sentence share them) and prints milliseconds a sentence by part.

    python scripts/experiments/bench/online_step.py [--features 1000000] [--batches 50]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from timing import cpu

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.losses import Logistic
from torchtune_smt.metrics import BleuPlusOne, with_gains
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.samplers import ProSampler, pair_rows
from torchtune_smt.tuners.gradient import pair_gradient
from torchtune_smt.tuners.learner import Learner

BATCH, K, LENGTH, DENSE, SPARSE, LIMIT = 20, 100, 12, 8, 52, 1.5


def synthetic_kbest(
    generator: np.random.Generator, index: int, reference: np.ndarray, features: int
) -> KBest:
    """Return a list whose hypotheses are copies of the reference with words replaced."""
    tokens = np.tile(reference, (K, 1))
    replaced = generator.random(tokens.shape) < 0.4
    tokens[replaced] = generator.integers(0, 20_000, replaced.sum())
    # Derivations of a sentence draw on one pool of features, of which most hold most.
    pool = np.sort(generator.choice(features - DENSE, 4 * SPARSE, replace=False) + DENSE)
    rows = [np.sort(generator.choice(pool, SPARSE, replace=False)) for _ in range(K)]
    feature = np.concatenate([np.concatenate([np.arange(DENSE), row]) for row in rows])
    value = np.concatenate(
        [np.concatenate([generator.normal(size=DENSE), np.ones(SPARSE)]) for _ in rows]
    )
    return KBest(
        index=index,
        rows=Rows(
            np.arange(0, (K + 1) * (DENSE + SPARSE), DENSE + SPARSE, dtype=np.int64),
            feature.astype(np.int32),
            value,
        ),
        token_begin=np.arange(0, (K + 1) * LENGTH, LENGTH, dtype=np.int64),
        tokens=tokens.ravel().astype(np.int32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)

    words = Vocabulary([f"w{i}" for i in range(20_000)])
    sentences = 10 * BATCH
    references = generator.integers(0, 20_000, (sentences, LENGTH))
    kbests = [
        synthetic_kbest(generator, i, references[i], arguments.features) for i in range(sentences)
    ]
    batches = [KBestLists.of(kbests[i : i + BATCH]) for i in range(0, sentences, BATCH)]
    weights = Weights([f"dense{i}" for i in range(DENSE)])
    weights.features.intern([f"feature{i}" for i in range(DENSE, arguments.features)])
    weights.grow()
    metric = BleuPlusOne().bind([[words.names(row)] for row in references], words)
    sampler = ProSampler()
    loss = Logistic()
    optimizer = AdaGrad([weights.parameter], 0.02, L1(0.1), unregularized=DENSE)
    learner = Learner(weights, optimizer)
    snapshot = learner.snapshot()

    parts = dict.fromkeys(("gains", "pairs", "gradient", "step"), 0.0)
    # The first epoch warms up kernels and fills the state; it does not count.
    for batch in range(-sentences // BATCH, arguments.batches):
        times = [cpu()]
        lists = with_gains(metric, batches[batch % len(batches)])
        times.append(cpu())
        rows = pair_rows(lists, sampler, (0, batch + sentences))
        times.append(cpu())
        gradient = pair_gradient(rows, None, snapshot, loss)
        times.append(cpu())
        learner.apply(gradient)
        times.append(cpu())
        if batch >= 0:
            for part, seconds in zip(parts, np.diff(times), strict=True):
                parts[part] += seconds
    optimizer.flush()

    print(
        f"{len(rows)} pairs, {rows.value.size} non-zeros, {gradient.feature.size} features "
        f"touched in the last mini-batch; {len(weights)} features"
    )
    scale = 1e3 / (arguments.batches * BATCH)
    for part, seconds in parts.items():
        print(f"{part:18s} {seconds * scale:7.4f} ms a sentence")
    all_parts = sum(parts.values()) * scale
    print(f"{'all':18s} {all_parts:7.4f} ms a sentence, {all_parts * BATCH:.2f} ms a mini-batch")
    print(f"limit {LIMIT} ms a sentence: {all_parts / LIMIT:.2f} of it")
    print(f"figure online_step: {all_parts:.2f} ms a sentence")


if __name__ == "__main__":
    main()
