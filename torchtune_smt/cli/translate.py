"""``translate``: translate a file with tuned weights."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tqdm import tqdm

from torchtune_smt.cli.command_line import refuse_given, split_arguments, value_of
from torchtune_smt.cli.decoding import dataset_of_run, open_tuned
from torchtune_smt.cli.help import NEEDLESS, NEVER
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.options import chosen_name
from torchtune_smt.cli.record import Settings, take_up
from torchtune_smt.cli.rerank import risk_order
from torchtune_smt.cli.wire import (
    class_of,
    decoder_class,
    make_templates,
    not_taken_by_decoder,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import check_written, output_to
from torchtune_smt.data.bitext import ON_ERROR, source_batches
from torchtune_smt.data.preprocess import Detokenizer
from torchtune_smt.decoders.base import Uncovered, lists_of
from torchtune_smt.features.templates import TranslationTemplate
from torchtune_smt.kbest.formats import nbest_lines
from torchtune_smt.kbest.lists import KBest, Source
from torchtune_smt.models.base import CLASS_MODEL_OPTIONS


def _translate(cfg: DictConfig, settings: Settings) -> None:
    refuse_given(_unused(cfg), settings.given)
    by_risk = risk_order(cfg, settings.given)
    if cfg.capitalize and not cfg.detokenize:
        raise InputError("capitalize=true would change nothing without detokenize=true")
    if cfg.on_error not in ON_ERROR:
        raise InputError(f"on_error must be {' or '.join(ON_ERROR)}, not {cfg.on_error!r}")
    if cfg.on_error == "copy" and cfg.n_best is not None:
        raise InputError("on_error=copy has no features for a list (n_best); take on_error=skip")
    check_written({"output": cfg.output}, [cfg.input, cfg.weights, *cfg.mean_with])
    dataset = dataset_of_run(cfg)
    pipe = cast(BufferedReader, sys.stdin.buffer) if cfg.input == "-" else None
    longest = decoder_class(cfg).longest_source(cfg.decoder)
    batches: Iterable[list[Source | str]] = source_batches(
        "standard input" if pipe else cfg.input,
        dataset.source_text.tokens,
        longest,
        cfg.on_error,
        lambda said: tqdm.write(f"warning: {said}", file=sys.stderr),
        pipe,
    )
    total = None
    if cfg.input != "-":
        # What is wrong with a file is found before a model is opened.
        batches = list(batches)
        total = sum(len(batch) for batch in batches)
    decoder, weights, _ = open_tuned(cfg, settings, dataset)
    detokenizer = Detokenizer(
        cfg.data.target_language, cfg.capitalize, verbatim=bool(cfg.data.tokenize)
    )
    line = detokenizer.line if cfg.detokenize else " ".join
    uncovered = Uncovered(decoder)
    # Where the answers are seen, a bar would be in their midst.
    seen = cfg.output in (None, "-") and sys.stdout.isatty()
    disable = True if seen or (total is None and sys.stdin.isatty()) else None
    bar = tqdm(total=total, unit="sent", file=sys.stderr, disable=disable)
    with output_to(cfg.output) as out, bar:
        for batch in batches:
            sources = [one for one in batch if isinstance(one, Source)]
            k = cfg.n_best or 1
            answers: Iterator[KBest] = iter(())
            if sources:
                lists = lists_of(decoder, sources, weights, k if by_risk is None else None)
                answers = iter(lists if by_risk is None else by_risk(lists, k))
                uncovered.add(sources)
            for one in batch:
                if isinstance(one, str):
                    out.write("" if cfg.n_best else one + "\n")
                    continue
                kbest = next(answers)
                if cfg.n_best is None:
                    out.write(kbest.texts(1, line)[0] + "\n")
                    continue
                whole = kbest.texts(line=line)
                out.writelines(nbest_lines(kbest, whole, decoder.dense_names))
            out.flush()
            bar.update(len(batch))
    said = uncovered.text(cfg.decoder.get("unknown"))
    if said is not None:
        print(said, file=sys.stderr)


def main() -> int:
    """Translate with the settings of the run that made the weights."""
    given, flags = split_arguments(sys.argv[1:])
    if "--help" not in flags:
        # Before those of the run come beside them, with which they may not go together.
        refuse_given(NEVER, given)
    weights = value_of(given, "weights")
    settings = Settings(given)
    if weights:
        settings = take_up(
            Path(str(weights)).parent,
            given,
            needless=NEEDLESS - {"metric"} if value_of(given, "mbr") else NEEDLESS,
        )
    command = hydra_main("translate", take=settings.apply)(partial(_translate, settings=settings))
    return command(settings.recorded)


def _unused(cfg: DictConfig) -> dict[str, str]:
    """Return the options of ``train`` that are of no use with what is chosen, with the reasons."""
    choices = HydraConfig.get().runtime.choices
    unused: dict[str, str] = {}
    decoder = decoder_class(cfg)
    if decoder.stored:
        # It does not translate at all, which is said then.
        return unused
    unused |= not_taken_by_decoder(cfg, choices)
    takes_model = "model" not in unused
    if not (takes_model and getattr(class_of(cfg, "model"), "from_bitext", False)):
        named = chosen_name(cfg, choices, "model" if takes_model else "decoder")
        reason = f"{named} is not built from a bitext"
        unused |= dict.fromkeys(("data.max_length", "data.max_ratio"), reason)
        if cfg.data.get("split_compounds") is None:
            unused |= dict.fromkeys(("data.train", "data.folders", "data.empty"), reason)
    looks_at_lists = (
        cfg.mbr
        or any((cfg.get("model") or {}).get(name) for name in CLASS_MODEL_OPTIONS)
        or any(isinstance(one, TranslationTemplate) for one in make_templates(cfg))
    )
    if not looks_at_lists:
        unused["decoder.k"] = "lists of decoder.k translations are for mbr=true (n_best says more)"
    return unused
