"""``translate``: translate a file with tuned weights."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO, Final, cast

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from tqdm import tqdm

from torchtune_smt.cli.command_line import split_arguments, value_of
from torchtune_smt.cli.compose import OFFERED, refuse_given
from torchtune_smt.cli.decoding import dataset_of_run, open_tuned
from torchtune_smt.cli.hydra_main import config_folders, error_line, hydra_main
from torchtune_smt.cli.minimum_risk import risk_order
from torchtune_smt.cli.options import chosen_name
from torchtune_smt.cli.run_folder import NEEDLESS, Settings, take_up
from torchtune_smt.cli.stopping import raise_if_stopped
from torchtune_smt.cli.uncovered import Uncovered
from torchtune_smt.cli.wire import argument_names, class_of, decoder_class
from torchtune_smt.cli.written_files import check_written
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.textio import arriving_lines, atomic_writer, iterate_lines
from torchtune_smt.data.bitext import check_length, check_reserved
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.data.preprocess import Detokenizer
from torchtune_smt.decoders.base import lists_of
from torchtune_smt.kbest.formats import nbest_lines
from torchtune_smt.kbest.lists import KBest, Source

BATCH = 64
# Groups and options of ``train`` that change no translation, and why.
_NEVER: Final = {
    **{group: f"translating takes no {group}" for group in NEEDLESS - {"metric"}},
    "seed": "translating draws nothing at random",
    "device": "translating works on the CPU alone",
    "lm": "translating takes the language model of the whole bitext",
    "report": "translating writes no report",
    "resume": "translating goes on with no run",
    "overwrite": "translating writes no run",
    "data.dev": "translating reads `input` alone",
    "data.test": "translating reads `input` alone",
}


def _translate(cfg: DictConfig, settings: Settings) -> None:
    """Translate the configured input."""
    refuse_given(_unused(cfg), settings.given)
    by_risk = risk_order(cfg, settings.given)
    if cfg.capitalize and not cfg.detokenize:
        raise InputError("capitalize=true would change nothing without detokenize=true")
    check_written({"output": cfg.output}, [cfg.input, cfg.weights])
    dataset = dataset_of_run(cfg)
    batches: Iterable[list[Source]] = _read_sources(cfg, dataset)
    total = None
    if cfg.input != "-":
        # What is wrong with a file is found before a model is opened.
        batches = list(batches)
        total = sum(len(batch) for batch in batches)
    decoder, weights, _ = open_tuned(cfg, settings, dataset)
    detokenizer = Detokenizer(cfg.data.target_language, cfg.capitalize)

    def text(kbest: KBest, h: int) -> str:
        words = decoder.words.names(kbest.hypothesis(h))
        return detokenizer.line(words) if cfg.detokenize else " ".join(words)

    uncovered = Uncovered(decoder)
    # Where the answers are seen, a bar would be in their midst.
    seen = cfg.output is None and sys.stdout.isatty()
    disable = True if seen or (total is None and sys.stdin.isatty()) else None
    bar = tqdm(total=total, unit="sent", file=sys.stderr, disable=disable)
    with _output(cfg.output) as out, bar:
        for batch in batches:
            k = cfg.n_best or 1
            if by_risk is None:
                lists = lists_of(decoder, batch, weights, k)
            else:
                lists = by_risk(lists_of(decoder, batch, weights), k)
            uncovered.add(batch)
            for kbest in lists:
                if cfg.n_best is None:
                    out.write(text(kbest, 0) + "\n")
                    continue
                out.writelines(nbest_lines(kbest, [text(kbest, h) for h in range(len(kbest))]))
            out.flush()
            bar.update(len(batch))
    said = uncovered.text(cfg.decoder.get("unknown"))
    if said is not None:
        print(said, file=sys.stderr)


def main() -> int:
    """Translate with the settings of the run that made the weights."""
    try:
        given, flags = split_arguments(sys.argv[1:])
        if "--help" not in flags:
            # Before those of the run come beside them, with which they may not go together.
            refuse_given(_NEVER, given)
        weights = value_of(given, "weights")
        settings = Settings(given)
        if weights:
            settings = take_up(
                Path(str(weights)).parent,
                given,
                needless=NEEDLESS - {"metric"} if value_of(given, "mbr") else NEEDLESS,
                sources=[config_folder(), *config_folders(flags)],
            )
        command = hydra_main("translate")(partial(_translate, settings=settings))
        return command(settings.recorded)
    except (InputError, HydraException) as error:
        raise_if_stopped()
        print(error_line(error), file=sys.stderr)
        return 1


def _unused(cfg: DictConfig) -> dict[str, str]:
    """Return the options of ``train`` that are of no use with what is chosen, with the reasons."""
    choices = HydraConfig.get().runtime.choices
    unused: dict[str, str] = {}
    decoder = decoder_class(cfg)
    if decoder.stored:
        # It does not translate at all, which is said then.
        return unused
    names = argument_names(decoder)
    named = chosen_name(cfg, "decoder", choices["decoder"])
    for argument, options in OFFERED.items():
        if argument not in names:
            reason = decoder.takes_not.get(argument, f"takes no {argument}")
            unused |= dict.fromkeys(options, f"{named} {reason}")
    builds = "model" in names and getattr(class_of(cfg, "model"), "from_bitext", False)
    if not builds:
        what = f"model={choices['model']}" if "model" in names else named
        reason = f"{what} is not built from a bitext"
        unused |= dict.fromkeys(("data.max_length", "data.max_ratio"), reason)
        if cfg.data.get("split_compounds") is None:
            unused |= dict.fromkeys(("data.train", "data.folders", "data.empty"), reason)
    if not cfg.mbr:
        unused["decoder.k"] = "lists of decoder.k translations are for mbr=true (n_best says more)"
    return unused


def _read_sources(cfg: DictConfig, dataset: Dataset) -> Iterator[list[Source]]:
    """Yield the tokenised input in batches; an empty line is a sentence without words.

    Of the standard input a batch is what has arrived: each line is answered before the next one.
    """
    path = "standard input" if cfg.input == "-" else cfg.input
    blocks: Iterable[Iterable[str]] = [iterate_lines(path)]
    if cfg.input == "-":
        blocks = arriving_lines(cast(BufferedReader, sys.stdin.buffer), path)
    text = dataset.source_text
    longest = decoder_class(cfg).longest_source(cfg.decoder)
    number = 0
    for lines in blocks:
        for some in _batched(lines):
            batch = []
            for line in some:
                words = text.tokens(line)
                number += 1
                check_reserved(words, path, number)
                if longest is not None:
                    check_length(words, longest, path, number)
                batch.append(Source(number - 1, words))
            yield batch


def _batched(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield some lines at a time."""
    rest = iter(lines)
    while some := list(islice(rest, BATCH)):
        yield some


@contextmanager
def _output(path: str | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
    else:
        with atomic_writer(path) as file:
            yield file
