"""``train``: build what is missing, tune, evaluate."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from torchtune_smt.cli.hydra_main import hydra_main, option_errors
from torchtune_smt.cli.setup import (
    check_part,
    initial_weights,
    make_decoder,
    make_templates,
    open_model,
    read_split,
    require_split,
)
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.errors import InputError
from torchtune_smt.metrics.corpus import CorpusScore
from torchtune_smt.run_log import RunLog, active_features
from torchtune_smt.textio import atomic_writer
from torchtune_smt.tuners.online import BatchReport, OnlineTuner, tune
from torchtune_smt.tuners.sentences import Sentences, score_corpus, translate
from torchtune_smt.weights_io import save_weights


@hydra_main("train")
def main(cfg: DictConfig) -> float:
    """Tune the configured system; returns dev BLEU, for sweeps."""
    start = time.perf_counter()
    # The tensors of a mini-batch are small: threads cost more than they bring, and decode besides.
    torch.set_num_threads(1)
    folder = Path(HydraConfig.get().runtime.output_dir)
    _check(cfg)
    parts = _Parts(cfg)
    dev_corpus = require_split(cfg.data, "dev")
    test_corpus = read_split(cfg.data, "test")
    on_train = cfg.tuner.tune_on == "train"
    bitext: Corpus | None = None

    def read_bitext() -> Corpus:
        nonlocal bitext
        bitext = require_split(cfg.data, "train", training=True)
        print(f"training bitext: {bitext.summary()}")
        return bitext

    grammar, model, folds = open_model(
        cfg.model, read_bitext, folds=on_train and cfg.lm == "folds", report=print
    )
    decoder = make_decoder(cfg, grammar, model, folds, parts.templates)
    weights = initial_weights(cfg.init, decoder)
    dev = Sentences.of(dev_corpus.source, dev_corpus.references)
    test = None if test_corpus is None else Sentences.of(test_corpus.source, test_corpus.references)
    tuning = dev
    if on_train and bitext is not None:
        tuning = Sentences.of(bitext.source, bitext.references, training=True)
    tuning = _sample(tuning, cfg.tuner.sentences, cfg.seed)

    with option_errors("optimizer"):
        optimizer = parts.optimizer(
            [weights.parameter],
            unregularized=0 if cfg.optimizer.regularize_dense else weights.n_dense,
        )
    with option_errors("tuner"):
        tuner = OnlineTuner(
            decoder,
            weights,
            parts.metric.bind(tuning.references, decoder.target_words),
            parts.sampler,
            parts.loss,
            optimizer,
            batch_size=cfg.tuner.batch_size,
            shuffle=cfg.tuner.shuffle,
            seed=cfg.seed,
        )
    with atomic_writer(folder / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(cfg, resolve=True))

    before = {name: _evaluate(decoder, weights, s) for name, s in _sets(dev, test).items()}
    print(f"before tuning: {_line(before)}", flush=True)
    print(
        f"tuning on {len(tuning):,} sentences of {'the bitext' if on_train else 'dev'}, "
        f"{cfg.tuner.epochs} epochs",
        flush=True,
    )
    with RunLog(folder) as log:
        log.text("config", f"```yaml\n{OmegaConf.to_yaml(cfg, resolve=True)}\n```")
        log.scalars(0, {f"bleu/{name}": score.score for name, (score, _) in before.items()})
        log.weights(0, weights)
        done = 0
        bar = tqdm(
            total=cfg.tuner.epochs * len(tuning), unit="sent", file=sys.stderr, smoothing=0.05
        )

        def on_batch(report: BatchReport) -> None:
            nonlocal done
            done += report.sentences
            bar.update(report.sentences)
            bar.set_postfix_str(f"epoch {report.epoch}, gain {report.gain:.4f}", refresh=False)
            log.scalars(
                done,
                {
                    "train/loss": report.loss,
                    "train/gain": report.gain,
                    "train/pairs": report.pairs,
                    "train/lr": optimizer.param_groups[0]["lr"],
                    "speed/sentences_per_second": report.sentences / report.seconds,
                    "speed/milliseconds_outside_decoding": 1e3
                    * (report.seconds - report.decoding)
                    / report.sentences,
                },
            )

        def on_epoch(epoch: int, score: float) -> None:
            log.scalars(done, {"bleu/dev": score})
            log.weights(done, weights)
            bar.write(
                f"epoch {epoch}: dev BLEU {score:.2f}, "
                f"{sum(active_features(weights).values()):,} active features",
                file=sys.stdout,
            )
            sys.stdout.flush()

        best = tune(
            tuner,
            tuning,
            cfg.tuner.epochs,
            lambda: _evaluate(decoder, weights, dev)[0].score,
            on_batch=on_batch,
            on_epoch=on_epoch,
        )
        bar.close()
        after = {name: _evaluate(decoder, weights, s) for name, s in _sets(dev, test).items()}
        active = active_features(weights)
        save_weights(folder / "weights.txt.gz", weights)
        for name, (_, lines) in after.items():
            with atomic_writer(folder / f"{name}.translations.txt") as file:
                file.writelines(f"{line}\n" for line in lines)
        log.scalars(
            done,
            {f"bleu/{name}_tuned": score.score for name, (score, _) in after.items()}
            | {"best_epoch": best.epoch},
        )
    _print_result(folder, before, after, active, best.epoch, time.perf_counter() - start)
    return after["dev"][0].score


_Scored = tuple[CorpusScore, list[str]]


class _Parts:
    """The replaceable parts, made before anything else, so that bad options are found at once."""

    def __init__(self, cfg: DictConfig) -> None:
        self.templates = make_templates(cfg.features)
        with option_errors("metric", cfg.metric):
            self.metric = instantiate(cfg.metric)
        with option_errors("sampler", cfg.sampler):
            self.sampler = instantiate(cfg.sampler)
        with option_errors("loss", cfg.loss):
            self.loss = instantiate(cfg.loss)
        with option_errors("regularizer", cfg.regularizer):
            regularizer = instantiate(cfg.regularizer)
        check_part("metric", self.metric, "bind")
        check_part("sampler", self.sampler, "sample")
        check_part("loss", self.loss, "__call__")
        check_part("regularizer", regularizer, "prox")
        settings = {
            name: value for name, value in cfg.optimizer.items() if name != "regularize_dense"
        }
        self.optimizer = instantiate(
            settings, _partial_=True, _convert_="object", regularizer=regularizer
        )
        with option_errors("optimizer", cfg.optimizer):
            self.optimizer([torch.nn.Parameter(torch.zeros(1))])


def _check(cfg: DictConfig) -> None:
    """Refuse combinations that make no sense, before anything is done."""
    if cfg.tuner.tune_on == "train" and cfg.model.kind == "files":
        raise InputError(
            "tuner.tune_on=train needs a grammar that can leave a sentence out again, and one that "
            "is read from a file cannot: use model=hiero, or tuner.tune_on=dev"
        )
    if cfg.tuner.tune_on == "train" and cfg.lm == "folds" and not cfg.model.folds:
        raise InputError(
            "lm=folds needs cross-fitted language models, and model.folds is 0: set model.folds=10"
        )


def _sets(dev: Sentences, test: Sentences | None) -> dict[str, Sentences]:
    return {"dev": dev} if test is None else {"dev": dev, "test": test}


def _sample(sentences: Sentences, size: int | None, seed: int) -> Sentences:
    """Return a seeded random sample, numbered anew."""
    if size is None or size >= len(sentences):
        return sentences
    chosen = np.sort(np.random.default_rng(seed).choice(len(sentences), size, replace=False))
    return sentences.subset(chosen.tolist())


def _evaluate(decoder: object, weights: object, sentences: Sentences) -> _Scored:
    lines = translate(decoder, weights, sentences.sources)  # type: ignore[arg-type]
    return score_corpus(lines, sentences), lines


def _line(scores: dict[str, _Scored]) -> str:
    return ", ".join(f"{name} BLEU {score.score:.2f}" for name, (score, _) in scores.items())


def _print_result(
    folder: Path,
    before: dict[str, _Scored],
    after: dict[str, _Scored],
    active: dict[str, int],
    epoch: int,
    seconds: float,
) -> None:
    """Print what came out, and where everything lies."""
    print(f"\n{'BLEU':<6}{'before':>8}{'after':>8}{'gain':>8}")
    for name in after:
        old, new = before[name][0].score, after[name][0].score
        print(f"{name:<6}{old:>8.2f}{new:>8.2f}{new - old:>+8.2f}")
    print(f"signature: {after['dev'][0].signature}")
    print(f"best epoch: {epoch}")
    parts = ", ".join(f"{count:,} {name}" for name, count in sorted(active.items()))
    print(f"active features: {sum(active.values()):,} ({parts})")
    print(f"time: {seconds:.0f} s")
    width = shutil.get_terminal_size().columns
    print("-" * min(width, 72))
    for name, what in {
        "weights.txt.gz": "tuned weights, name and value a line",
        "dev.translations.txt": "translations with the tuned weights",
        "test.translations.txt": "translations with the tuned weights",
        "metrics.jsonl": "everything measured, a line each",
        "config.yaml": "the configuration, resolved",
    }.items():
        if (folder / name).exists():
            print(f"{folder / name}: {what}")
    print(f"tensorboard --logdir {folder}")
