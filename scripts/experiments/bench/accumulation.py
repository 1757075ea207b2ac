"""What accumulated k-best lists take: bytes and seconds a hypothesis, on lists of the bitext.

Decodes a sample of Multi30k's training sentences (leave-one-out grammars, cross-fitted language
models, 100-best, features=rule_id), tunes by PRO for some iterations, and prints how much the lists
take by part, what adding to them and drawing pairs from them costs, and what 29,000 sentences would
take in 15 iterations: if every hypothesis were new, and with as many new ones as here.

    python scripts/experiments/bench/accumulation.py [--sentences 400] [--iterations 6]
        [--features rule_id]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from timing import cpu

from torchtune_smt.core.resources import config_folder
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics import bind_metric
from torchtune_smt.runs.console import Console
from torchtune_smt.runs.rounds import Rounds
from torchtune_smt.samplers import pair_rows
from torchtune_smt.tuners.batch import BatchTuner, Collector
from torchtune_smt.tuners.pro import Pro
from torchtune_smt.tuners.start import weights_of_values

SENTENCES, ITERATIONS, K, LIMIT = 29_000, 15, 100, 8 << 30


class Timed(ListStore):
    """Accumulated lists that note how long adding takes."""

    seconds = 0.0

    def add(self, *arguments) -> int:  # type: ignore[no-untyped-def]
        """Add, and note the time."""
        begin = cpu()
        new = super().add(*arguments)
        self.seconds += cpu() - begin
        return new


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of the lists' files by what they hold."""
    result: dict[str, int] = {}
    for path in sorted(folder.glob("*/*.npy")):
        array = np.load(path, mmap_mode="r")
        parts = {path.stem: array.dtype} if array.dtype.names is None else array.dtype.fields
        for name, kind in parts.items():
            kind = kind if isinstance(kind, np.dtype) else kind[0]
            what = "dense" if name.startswith("dense") else name
            result[what] = result.get(what, 0) + kind.itemsize * array.size
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--features", default="rule_id")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = compose(
            "train",
            [
                "data=multi30k",
                f"features={arguments.features}",
                "tuner=pro",
                "tuner.tune_on=train",
                f"tuner.sentences={arguments.sentences}",
            ],
        )
    bitext = Dataset(**cfg.data).require("train", training=True)
    model = instantiate(cfg.model).open(lambda: bitext, folds=True)
    templates = [instantiate(template) for template in cfg.features.templates]
    decoder = instantiate(cfg.decoder, _partial_=True)(model, templates=templates)
    weights = weights_of_values(dict(cfg.init["values"]), decoder)
    sentences = Sentences.of(bitext.source, bitext.references, training=True)
    tuning = sentences.sample(arguments.sentences, cfg.seed)
    sampler = instantiate(cfg.sampler)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lists = Timed(n_dense=weights.n_dense, folder=folder)
        metric = bind_metric(instantiate(cfg.metric), tuning.references, decoder.words)
        collector = Collector(decoder, weights, tuning, metric, lists)

        share = cfg.tuner.interpolation
        tuner = BatchTuner(collector, Pro(sampler), interpolation=share, seed=cfg.seed)
        Rounds(tuner, lambda: 0.0, rounds=arguments.iterations, callbacks=[Console()]).run()
        n, decoded = lists.n_hypotheses, len(tuning) * arguments.iterations
        by_part = sizes(folder)
        text = ", ".join(f"{part} {size / n:.1f}" for part, size in by_part.items())
        print(f"bytes a hypothesis: {lists.nbytes / n:.1f} ({text})")
        print(f"adding: {1e6 * lists.seconds / (decoded * K):.1f} µs a decoded hypothesis")
        begin = cpu()
        pairs = pair_rows(lists, sampler, (0,))
        seconds = cpu() - begin
        print(
            f"{len(pairs):,} pairs: {seconds:.2f} s, {1e3 * seconds / len(tuning):.2f} ms a "
            f"list, {(pairs.value.nbytes + pairs.feature.nbytes) / len(pairs):.0f} bytes a pair"
        )
        begin = cpu()
        flat = lists.lists()
        seconds = cpu() - begin
        width = flat.rows.value.size / n
        print(f"all laid out: {seconds:.2f} s, {width:.1f} non-zeros a hypothesis")
    size = lists.nbytes / n
    most = SENTENCES * ITERATIONS * K
    # The share of new hypotheses falls with the iterations: the last one's stands for those after.
    new = [count / len(tuning) for count in lists.sizes]
    expected = SENTENCES * sum([*new, *[new[-1]] * ITERATIONS][:ITERATIONS])
    for what, count in {"all new": most, "as many new as here": expected}.items():
        print(
            f"{SENTENCES:,} sentences × {ITERATIONS} iterations × {K}, {what}: {count:,.0f} "
            f"hypotheses, {count * size / (1 << 30):.2f} GiB, {count * size / LIMIT:.2f} of 8 GiB"
        )


if __name__ == "__main__":
    main()
