"""``translate``: translate a file with tuned weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from hydra.errors import HydraException
from omegaconf import DictConfig
from tqdm import tqdm

from torchtune_smt.cli.belonging import check_belongs, check_named, model_origin
from torchtune_smt.cli.command_line import split_arguments, value_of
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.objects import make, make_dataset, make_templates, thread_count
from torchtune_smt.cli.run_folder import Settings, take_up
from torchtune_smt.cli.stopping import raise_if_stopped
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import atomic_writer, iterate_lines, lines_of
from torchtune_smt.data.bitext import check_length
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.data.preprocess import Detokenizer
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.formats import nbest_lines
from torchtune_smt.kbest.lists import KBest, Source
from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.weight_files import read_any_weights

BATCH = 64


def _translate(cfg: DictConfig, settings: Settings) -> None:
    """Translate the configured input."""
    named = check_named(cfg, settings)
    dataset = make_dataset(cfg)
    sources = _read_sources(cfg, dataset)
    templates = make_templates(cfg)

    def model() -> Model:
        source: ModelSource = make(cfg, "model", "open")
        found = source.open(
            lambda: dataset.require("train", training=True),
            report=lambda line: print(line, file=sys.stderr),
            compare_bitext=False,
            may_write=settings.may_write_model,
        )
        check_belongs(cfg, settings, named, model_origin(cfg, dataset, found, templates))
        return found

    decoder: Decoder = make(
        cfg,
        "decoder",
        "decode",
        offered={
            "model": model,
            "templates": lambda: templates,
            "threads": lambda: thread_count(cfg.threads),
        },
    )
    weights = FrozenWeights(*read_any_weights(cfg.weights))
    dense = np.arange(len(decoder.dense_names))
    if dense.size and not weights.read(decoder.features, dense).any():
        raise InputError(
            "has no weight for any dense feature of this model; was it made with another one?",
            path=cfg.weights,
        )
    # Rows of features are written in this order.
    decoder.features.intern(weights.features.names(range(len(weights))))
    detokenizer = Detokenizer(cfg.data.target_language, cfg.capitalize)

    def text(kbest: KBest, h: int) -> str:
        words = decoder.words.names(kbest.hypothesis(h))
        return detokenizer.line(words) if cfg.detokenize else " ".join(words)

    bar = tqdm(total=len(sources), unit="sent", file=sys.stderr, disable=None)
    with _output(cfg.output) as out, bar:
        for begin in range(0, len(sources), BATCH):
            batch = sources[begin : begin + BATCH]
            for kbest in decoder.decode(batch, weights, k=cfg.n_best or 1):
                if cfg.n_best is None:
                    out.write(text(kbest, 0) + "\n")
                    continue
                out.writelines(nbest_lines(kbest, [text(kbest, h) for h in range(len(kbest))]))
            bar.update(len(batch))


def main() -> int:
    """Translate with the settings of the run that made the weights."""
    try:
        given = split_arguments(sys.argv[1:]).overrides
        weights = value_of(given, "weights")
        settings = take_up(Path(str(weights)).parent, given) if weights else Settings(given)
        command = hydra_main("translate")(partial(_translate, settings=settings))
        return command(settings.recorded)
    except (InputError, HydraException) as error:
        raise_if_stopped()
        print(f"error: {error}", file=sys.stderr)
        return 1


def _read_sources(cfg: DictConfig, dataset: Dataset) -> list[Source]:
    """Read and tokenise the input; an empty line is a sentence without words."""
    if cfg.input == "-":
        path, lines = "standard input", lines_of(sys.stdin.buffer, "standard input")
    else:
        path, lines = cfg.input, iterate_lines(cfg.input)
    text = dataset.text(dataset.source_language)
    sources = []
    for i, line in enumerate(lines):
        words = text.tokens(line)
        if "max_words" in cfg.decoder:
            check_length(words, cfg.decoder.max_words, path, i + 1)
        sources.append(Source(i, words))
    return sources


@contextmanager
def _output(path: str | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
    else:
        with atomic_writer(path) as file:
            yield file
