"""Decoding the same sentences again, with and without what is kept of them (decoder.keep_mb).

python scripts/experiments/bench/decode_again.py [--data multi30k] [OVERRIDE ...]

Decodes dev in turn with one decoder that keeps nothing and one that keeps all, checks that lists
are the same, and prints the least seconds of each, their ratio, and the memory that is taken.
"""

from __future__ import annotations

import argparse

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from timing import Spread, cpu

from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.grammar_decoder import GrammarDecoder
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences

BATCH = 64
ROOM = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default="example")
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of train.py")
    given = parser.parse_args()
    with initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
        cfg = compose("train", overrides=[f"data={given.data}", "threads=1", *given.overrides])
    dataset = Dataset(**cfg.data)
    train, dev = dataset.require("train", training=True), dataset.require("dev")
    model = instantiate(cfg.model).open(lambda: train, report=print)
    sources = Sentences.of(dev.source, dev.references).sources
    templates = [instantiate(template) for template in cfg.features.templates]

    def made(room: float) -> GrammarDecoder:
        options = {"templates": templates, "keep_mb": room, "threads": 1}
        return instantiate(cfg.decoder, _partial_=True)(model, **options)

    decoders = {"anew": made(0), "kept": made(ROOM)}
    weights = Weights(decoders["anew"].dense_names)
    weights.set(decoders["anew"].dense_names, np.full(weights.n_dense, 0.1))

    def decoded(decoder: GrammarDecoder) -> tuple[float, list[KBestLists]]:
        begin = cpu()
        lists = list(decoder.decode_all(sources, weights, BATCH))
        return cpu() - begin, lists

    times: dict[str, list[float]] = {name: [] for name in decoders}
    for number in range(given.times + 2):
        lists = []
        for name, decoder in decoders.items():
            seconds, found = decoded(decoder)
            lists.append(found)
            # Compiled, and kept, after two times.
            if number >= 2:
                times[name].append(seconds)
        for a, b in zip(*lists, strict=True):
            assert a.score is not None and b.score is not None
            np.testing.assert_array_equal(a.score, b.score)
            np.testing.assert_array_equal(a.rows.feature, b.rows.feature)
    kept = decoders["kept"]._kept
    anew, again = (Spread.of(times[name]) for name in decoders)
    print(f"{len(sources):,} sentences anew: {anew.said(1)} s; kept: {again.said(1)} s of CPU")
    print(
        f"{again.median / anew.median:.2f} times; {kept.nbytes / 1e6:,.0f} MB, "
        f"{kept.nbytes / 1e6 / len(kept):.2f} a sentence"
    )


if __name__ == "__main__":
    main()
