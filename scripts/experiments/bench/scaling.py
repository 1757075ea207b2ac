"""When a cluster would saturate: a simulation of epochs from times that are measured here.

Measured in this process: what the driver does for each feature that a shard returns (unpickle,
add), once for each that it sends (pickle), and what a step of a stale gradient takes. Given: what
decoding and learning take for a sentence (parallel.py here prints sentences a second), and the
network.

Assumptions: shards take equally long but for a random spread, given by its relative standard
deviation; a shard's active features are a share of all; the driver's own link carries all that is
sent and returned, and it adds up shards one after the other while others compute; nodes do not
fail. Workers of stale gradients send one for each mini-batch, and the driver applies one at a time.

    python scripts/experiments/bench/scaling.py [--seconds 0.03] [--sentences 1600000]
        [--spread 0.1]
"""

from __future__ import annotations

import argparse
import heapq
import pickle

import numpy as np
import torch
from timing import cpu

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.optim import AdaGrad
from torchtune_smt.parallel.mixing import Columns
from torchtune_smt.parallel.shard_worker import active
from torchtune_smt.regularizers import L1
from torchtune_smt.tuners.gradient import Gradient
from torchtune_smt.tuners.learner import Learner

FEATURES = 200_000
BATCH_FEATURES = 4_000


def per_feature() -> tuple[float, float, float]:
    """Return the driver's seconds for a feature sent, and returned, and the bytes of one."""
    weights = Weights()
    weights.features.intern([f"rule_id:wort{i}~word{i}" for i in range(FEATURES)])
    weights.grow()
    weights.parameter.data[:] = 1.0
    columns = Columns(Vocabulary(), 0, 2)
    columns.add(active(weights))
    begin = cpu()
    message = pickle.dumps(active(weights))
    sent = cpu()
    columns.add(pickle.loads(message))
    end = cpu()
    return (sent - begin) / FEATURES, (end - sent) / FEATURES, len(message) / FEATURES


def per_step() -> float:
    """Return the driver's seconds for the gradient of a mini-batch."""
    weights = Weights()
    weights.features.intern([f"rule_id:wort{i}~word{i}" for i in range(FEATURES)])
    learner = Learner(weights, AdaGrad([weights.parameter], 0.02, L1(0.1)))
    generator = np.random.default_rng(0)
    messages = []
    for _ in range(20):
        ids = np.sort(generator.choice(FEATURES, BATCH_FEATURES, replace=False))
        messages.append(pickle.dumps(Gradient(ids, np.ones(ids.size), weights.features, 0, 0, 1)))
    begin = cpu()
    for message in messages:
        learner.apply(pickle.loads(message))
    return (cpu() - begin) / len(messages)


def mixing_epoch(workers: int, shards: np.ndarray, receive: float, link: float) -> float:
    """Return the seconds of an epoch.

    Parameters
    ----------
    shards : float64 [Z]
        Seconds of each.
    receive, link : float
        The driver's seconds for a result; those that its link takes for it, and for the weights
        that a worker begins with.
    """
    free = [link * (w + 1) for w in range(min(workers, shards.size))]
    driver = 0.0
    for seconds in shards:
        end = heapq.heappop(free) + seconds
        driver = max(driver, end) + receive + link
        heapq.heappush(free, end + link)
    return driver


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.03, help="of a sentence, in a worker")
    parser.add_argument("--sentences", type=int, default=1_600_000)
    parser.add_argument("--shard", type=int, default=1000, help="sentences of a shard")
    parser.add_argument("--active", type=float, default=0.01, help="share that a shard returns")
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--gigabits", type=float, default=10.0, help="of the driver's link")
    parser.add_argument("--batch", type=int, default=20, help="sentences of a mini-batch")
    given = parser.parse_args()
    torch.set_num_threads(1)
    send, receive, size = per_feature()
    step = per_step()
    print(
        f"measured: {send * 1e9:.0f} ns a feature sent, {receive * 1e9:.0f} ns returned, "
        f"{size:.0f} bytes; {step * 1e3:.2f} ms a step of {BATCH_FEATURES:,} features"
    )
    count = max(1, given.sentences // given.shard)
    generator = np.random.default_rng(0)
    spread = np.maximum(0.1, 1 + given.spread * generator.standard_normal(count))
    seconds = given.seconds * given.shard * spread
    serial = float(seconds.sum())
    print(f"\nitermix, {count:,} shards: efficiency (speed-up over one worker / workers)")
    print(f"{'features':>12}{'returned':>12}" + "".join(f"{w:>8}" for w in WORKERS))
    for features in (10**5, 10**6, 10**7, 10**8):
        returned = features * given.active
        link = returned * size * 8 / (given.gigabits * 1e9)
        row = f"{features:12,}{int(returned):12,}"
        for workers in WORKERS:
            took = send * returned + mixing_epoch(workers, seconds, receive * returned, link)
            row += f"{serial / took / workers:8.2f}"
        busy = count * (receive * returned + link)
        print(f"{row}   saturates at {serial / busy:,.0f} workers")
    batch = given.seconds * given.batch
    print(
        f"\nstale: a mini-batch takes {batch:.2f} s in a worker and {step * 1e3:.2f} ms in the "
        f"driver, which saturates at {batch / step:,.0f} workers; staleness is then their number"
    )


WORKERS = (1, 10, 30, 100, 300)

if __name__ == "__main__":
    main()
