"""``translate``: translate a file with tuned weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from omegaconf import DictConfig
from tqdm import tqdm

from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.run_folder import override_key, with_recorded
from torchtune_smt.cli.setup import make_decoder, make_templates, open_model, require_split
from torchtune_smt.data.bitext import check_length
from torchtune_smt.data.preprocess import Detokenizer, Preprocessor
from torchtune_smt.errors import InputError
from torchtune_smt.kbest import KBest, Source
from torchtune_smt.textio import atomic_writer, iterate_lines, lines_of
from torchtune_smt.weights import Weights
from torchtune_smt.weights_io import load_weights

BATCH = 64


@hydra_main("translate")
def _translate(cfg: DictConfig) -> None:
    """Translate the configured input."""
    torch.set_num_threads(1)
    if cfg.decoder.kind != "hiero":
        raise InputError(
            f"these weights are of a run with decoder={cfg.decoder.kind}, which translates "
            "nothing: apply them to a list with scripts/rerank.py, or give decoder=hiero"
        )
    sources = _read_sources(cfg)
    grammar, model, _ = open_model(
        cfg.model,
        lambda: require_split(cfg.data, "train", training=True),
        folds=False,
        report=lambda line: print(line, file=sys.stderr),
        compare_bitext=False,
    )
    decoder = make_decoder(cfg, grammar, model, [], make_templates(cfg.features))
    weights = Weights(decoder.dense_names)
    load_weights(cfg.weights, weights)
    if not weights.parameter[: weights.n_dense].any():
        raise InputError(
            "has no weight for any dense feature of this model; was it made with another one?",
            path=cfg.weights,
        )
    detokenizer = Detokenizer(cfg.data.target_language, cfg.capitalize)

    def text(kbest: KBest, h: int) -> str:
        words = decoder.target_words.names(kbest.hypothesis(h))
        return detokenizer.line(words) if cfg.detokenize else " ".join(words)

    bar = tqdm(total=len(sources), unit="sent", file=sys.stderr, disable=None)
    with _output(cfg.output) as out, bar:
        for begin in range(0, len(sources), BATCH):
            batch = sources[begin : begin + BATCH]
            for kbest in decoder.decode(batch, weights, k=cfg.n_best or 1):
                if cfg.n_best is None:
                    out.write(text(kbest, 0) + "\n")
                    continue
                for h in range(len(kbest)):
                    ids, values = kbest.row(h)
                    names = weights.features.names(ids)
                    row = " ".join(
                        f"{name}={value:.10g}"
                        for name, value in zip(names, values.tolist(), strict=True)
                    )
                    out.write(
                        f"{kbest.index} ||| {text(kbest, h)} ||| {row} ||| {kbest.score[h]:.10g}\n"
                    )
            bar.update(len(batch))


def main() -> int:
    """Translate with the settings of the run that made the weights."""
    given = sys.argv[1:]
    found = [o.partition("=")[2] for o in given if override_key(o) == "weights"]
    before = sys.argv
    try:
        if found:
            sys.argv = [sys.argv[0], *with_recorded(Path(found[-1]).parent, given)]
        return _translate()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        sys.argv = before


def _read_sources(cfg: DictConfig) -> list[Source]:
    """Read and tokenise the input; an empty line is a sentence without words."""
    if cfg.input == "-":
        path, lines = "standard input", lines_of(sys.stdin.buffer, "standard input")
    else:
        path, lines = cfg.input, iterate_lines(cfg.input)
    text = Preprocessor(
        language=cfg.data.source_language,
        lowercase=cfg.data.lowercase,
        normalize=cfg.data.normalize,
        tokenize=cfg.data.tokenize,
    )
    sources = []
    for i, line in enumerate(lines):
        words = text.tokens(line)
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
