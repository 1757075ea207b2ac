"""``translate``: translate a file with tuned weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from hydra.errors import HydraException
from omegaconf import DictConfig
from tqdm import tqdm

from torchtune_smt.cli.command_line import split_arguments, value_of
from torchtune_smt.cli.decoding import open_tuned
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.objects import make_dataset
from torchtune_smt.cli.run_folder import Settings, take_up
from torchtune_smt.cli.stopping import raise_if_stopped
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_writer, iterate_lines, lines_of
from torchtune_smt.data.bitext import check_length
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.data.preprocess import Detokenizer
from torchtune_smt.kbest.formats import nbest_lines
from torchtune_smt.kbest.lists import KBest, Source

BATCH = 64


def _translate(cfg: DictConfig, settings: Settings) -> None:
    """Translate the configured input."""
    dataset = make_dataset(cfg)
    sources = _read_sources(cfg, dataset)
    decoder, weights = open_tuned(cfg, settings, dataset)
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
