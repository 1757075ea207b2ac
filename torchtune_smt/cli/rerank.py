"""``rerank``: apply weights to an n-best list."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.hydra_main import hydra_main, option_errors
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.text import split_fields
from torchtune_smt.core.textio import atomic_writer, read_text
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.decoders.kbest_files import KBestFiles


@hydra_main("rerank")
def main(cfg: DictConfig) -> None:
    """Write the best hypotheses, or the lists in their new order."""
    if cfg.n_best is not None and cfg.n_best < 1:
        raise InputError(f"n_best must be at least 1, not {cfg.n_best}")
    with option_errors("rerank"):
        decoder = KBestFiles(format=cfg.format, on_error=cfg.on_error, dense=[], unique=False)
        stored = decoder.read("input", [cfg.input])
    if stored.skipped:
        print(f"{cfg.input}: {stored.summary()}", file=sys.stderr)
    weights = FrozenWeights(*read_weights(cfg.weights))
    active = np.flatnonzero(weights.values)
    if active.size == 0:
        print(f"{cfg.weights}: all weights are 0, which leaves lists as they are", file=sys.stderr)
    elif not any(name in decoder.features for name in weights.features.names(active)):
        raise InputError(
            f"has no weight for any feature of {cfg.input}; was it made for other lists?",
            path=cfg.weights,
        )
    if cfg.n_best is None:
        lines = best_hypotheses(decoder, weights)
    else:
        text = read_text(cfg.input).split(b"\n")
        lines = sorted_lists(decoder, weights, text, cfg.n_best)
    if cfg.output is None:
        sys.stdout.writelines(lines)
    else:
        with atomic_writer(cfg.output) as file:
            file.writelines(lines)


def best_hypotheses(decoder: KBestFiles, weights: FrozenWeights) -> Iterator[str]:
    """Yield the best hypothesis of each sentence, a line; empty where there is none."""
    written = 0
    numbers = decoder.sets["input"].lists.index.tolist()
    for source, number in zip(decoder.sources("input"), numbers, strict=True):
        (kbest,) = decoder.decode([source], weights, k=1)
        yield "\n" * (number - written)
        yield kbest.text(0) + "\n"
        written = number + 1


def sorted_lists(
    decoder: KBestFiles, weights: FrozenWeights, text: Sequence[bytearray], k: int
) -> Iterator[str]:
    """Yield the best lines of each list, with their new scores in the fourth field.

    Parameters
    ----------
    text : sequence of bytearray
        The lines of the file.
    """
    for source in decoder.sources("input"):
        lists = decoder.decode([source], weights, k=k)
        assert lists.score is not None
        for line, score in zip(lists.entries().tolist(), lists.score.tolist(), strict=True):
            fields = split_fields(text[line - 1].decode("utf-8"))
            fields[3] = f" {score:.10g} " if len(fields) > 4 else f" {score:.10g}"
            yield "|||".join(fields) + "\n"
