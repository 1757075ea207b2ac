"""``train``: build what is missing, tune, evaluate."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.checkpoint import load_checkpoint, save_checkpoint
from torchtune_smt.cli.hydra_main import hydra_main, option_errors
from torchtune_smt.cli.lists import (
    evaluate_lists,
    list_metric,
    list_sentences,
    list_weights,
    open_lists,
)
from torchtune_smt.cli.options import require_all
from torchtune_smt.cli.reporting import Reporter, Scored, contents, summary
from torchtune_smt.cli.run_folder import override_key, with_recorded
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
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.errors import InputError
from torchtune_smt.metrics.base import BoundMetric, Metric
from torchtune_smt.run_log import RunLog
from torchtune_smt.textio import atomic_writer
from torchtune_smt.tuners.epochs import EpochSettings, Progress, tune
from torchtune_smt.tuners.online import BatchReport, OnlineTuner
from torchtune_smt.tuners.sentences import Sentences, score_corpus, translate
from torchtune_smt.weights import Weights
from torchtune_smt.weights_io import save_weights

CHECKPOINT = "checkpoint.pt"


@hydra_main("train")
def _train(cfg: DictConfig) -> float:
    """Tune the configured system; returns dev BLEU, for sweeps."""
    start = time.perf_counter()
    # The tensors of a mini-batch are small: threads cost more than they bring, and decode besides.
    torch.set_num_threads(1)
    folder = Path(HydraConfig.get().runtime.output_dir)
    if cfg.resume is not None and (folder / "weights.txt.gz").exists():
        raise InputError("this run is finished; there is nothing to resume", path=folder)
    require_all(cfg)
    _check(cfg)
    parts = _Parts(cfg)
    on_train = cfg.tuner.tune_on == "train"
    decoder, weights, sets, tuning = _with_lists(cfg) if _stored(cfg) else _with_model(cfg, parts)
    tuning = _sample(tuning, cfg.tuner.sentences, cfg.seed)
    with option_errors("optimizer", cfg.optimizer):
        optimizer = parts.optimizer(
            [weights.parameter],
            unregularized=0 if cfg.optimizer.regularize_dense else weights.n_dense,
        )
    with option_errors("tuner"):
        tuner = OnlineTuner(
            decoder,
            weights,
            _gains(decoder, parts.metric, tuning),
            parts.sampler,
            parts.loss,
            optimizer,
            batch_size=cfg.tuner.batch_size,
            shuffle=cfg.tuner.shuffle,
            seed=cfg.seed,
        )
    fingerprint = _fingerprint(cfg)
    progress = Progress()
    if cfg.resume is not None:
        before = _scores_before(folder)
        progress = load_checkpoint(folder / CHECKPOINT, weights, optimizer, fingerprint)
        print(f"resuming in epoch {progress.epoch}, after {progress.sentences:,} sentences")
    else:
        scores = {name: _evaluate(decoder, weights, s)[0].score for name, s in sets.items()}
        before = scores
        parts_before = ", ".join(f"{name} BLEU {score:.2f}" for name, score in scores.items())
        print(f"before tuning: {parts_before}", flush=True)
    with atomic_writer(folder / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(cfg, resolve=True))
    print(
        f"tuning on {len(tuning):,} sentences of {'the bitext' if on_train else 'dev'}, "
        f"{cfg.tuner.epochs} epochs",
        flush=True,
    )

    total = parts.epochs.epochs * len(tuning)
    with (
        RunLog(folder, progress if cfg.resume is not None else None) as log,
        closing(Reporter(log, weights, total, progress.sentences)) as reporter,
    ):
        if cfg.resume is None:
            log.text("config", f"```yaml\n{OmegaConf.to_yaml(cfg, resolve=True)}\n```")
            log.scalars(0, {f"bleu/{name}": score for name, score in before.items()})
            log.weights(0, weights)
        saved = time.perf_counter()

        def on_batch(report: BatchReport, progress: Progress) -> None:
            reporter.batch(report, progress, optimizer.param_groups[0]["lr"])

        def save(progress: Progress) -> None:
            nonlocal saved
            due = time.perf_counter() - saved >= 60 * cfg.tuner.checkpoint_minutes
            if due or progress.batches == 0:
                progress.records = log.records
                save_checkpoint(folder / CHECKPOINT, weights, optimizer, progress, fingerprint)
                saved = time.perf_counter()

        progress = tune(
            tuner,
            tuning,
            parts.epochs,
            lambda: _evaluate(decoder, weights, sets["dev"])[0].score,
            average=optimizer.averaged if _averages(cfg) else None,
            progress=progress,
            on_batch=on_batch,
            on_epoch=reporter.epoch,
            save=save,
        )
        reporter.close()
        after = {name: _evaluate(decoder, weights, s) for name, s in sets.items()}
        for name, (_, lines) in after.items():
            with atomic_writer(folder / f"{name}.translations.txt") as file:
                file.writelines(f"{line}\n" for line in lines)
        best = progress.best.epoch if progress.best is not None else 0
        tuned = {f"bleu/{name}_tuned": score.score for name, (score, _) in after.items()}
        text = summary(before, after, weights, best, start)
        log.scalars(progress.sentences, tuned | {"best_epoch": best})
        log.text("summary", f"```\n{text}\n```")
        log.hparams(_hparams(cfg), tuned)
        # Last: a folder with weights holds a run that is finished.
        save_weights(folder / "weights.txt.gz", weights)
        (folder / CHECKPOINT).unlink(missing_ok=True)
    print(f"\n{text}\n{'-' * 72}\n{contents(folder)}")
    return after["dev"][0].score


def main() -> int:
    """Tune; ``resume=FOLDER`` goes on with a run that was stopped, with its own settings."""
    given = sys.argv[1:]
    found = [o.partition("=")[2] for o in given if override_key(o) == "resume"]
    before = sys.argv
    try:
        if found and found[-1] not in ("", "null"):
            folder = Path(found[-1])
            if not (folder / CHECKPOINT).is_file() and not (folder / "weights.txt.gz").is_file():
                raise InputError("holds no run that can be resumed; check the path", path=folder)
            overrides = with_recorded(folder, given)
            sys.argv = [sys.argv[0], *overrides, f"hydra.run.dir={folder}"]
        return _train()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        sys.argv = before


_Task = tuple[Decoder, Weights, dict[str, Sentences], Sentences]
"""The decoder, its weights, the sets that are evaluated, and the one that is tuned on."""


def _stored(cfg: DictConfig) -> bool:
    return bool(cfg.decoder.kind == "kbest_files")


def _with_lists(cfg: DictConfig) -> _Task:
    """Return what there is to tune on stored k-best lists."""
    decoder = open_lists(cfg.decoder, tune_on=cfg.tuner.tune_on)
    weights = list_weights(cfg.init, decoder)
    found = {name: list_sentences(decoder, name, cfg.data) for name in decoder.sets}
    sets = {name: sentences for name, sentences in found.items() if sentences is not None}
    tuning = sets[cfg.tuner.tune_on]
    return decoder, weights, {name: sets[name] for name in ("dev", "test") if name in sets}, tuning


def _with_model(cfg: DictConfig, parts: _Parts) -> _Task:
    """Return what there is to tune with grammar and language model, built if need be."""
    sets = {"dev": _sentences(require_split(cfg.data, "dev"))}
    test = read_split(cfg.data, "test")
    if test is not None:
        sets["test"] = _sentences(test)
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
    tuning = sets["dev"]
    if on_train and bitext is not None:
        tuning = Sentences.of(bitext.source, bitext.references, training=True)
    return decoder, weights, sets, tuning


def _gains(decoder: Decoder, metric: Metric, tuning: Sentences) -> BoundMetric:
    if isinstance(decoder, KBestFiles):
        return list_metric(decoder, metric, tuning)
    return metric.bind(tuning.references, decoder.target_words)


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
        with option_errors("tuner"):
            self.epochs = EpochSettings(cfg.tuner.epochs, cfg.tuner.patience, cfg.tuner.result)


def _check(cfg: DictConfig) -> None:
    """Refuse combinations that make no sense, before anything is done."""
    if _stored(cfg):
        return
    if cfg.tuner.tune_on == "train" and cfg.model.kind == "files":
        raise InputError(
            "tuner.tune_on=train needs a grammar that can leave a sentence out again, and one that "
            "is read from a file cannot: use model=hiero, or tuner.tune_on=dev"
        )
    if cfg.tuner.tune_on == "train" and cfg.lm == "folds" and not cfg.model.folds:
        raise InputError(
            "lm=folds needs cross-fitted language models, and model.folds is 0: set model.folds=10"
        )
    if _averages(cfg) and cfg.tuner.result != "average":
        raise InputError(
            f"optimizer.average={cfg.optimizer.average} has no effect on tuner.result="
            f"{cfg.tuner.result}: set tuner.result=average, or optimizer.average=none"
        )


def _averages(cfg: DictConfig) -> bool:
    """Return whether the optimizer keeps an average of the weights."""
    return bool(cfg.optimizer.get("average", "none") != "none")


# What may differ between a run and the one that resumes it: it does not change the result.
_FREE = ("resume", "threads", "tuner.epochs", "tuner.patience", "tuner.checkpoint_minutes")


def _fingerprint(cfg: DictConfig) -> dict[str, str]:
    """Return every setting that the result depends on, by name."""

    def flat(prefix: str, value: object) -> dict[str, str]:
        if isinstance(value, dict):
            parts = [flat(f"{prefix}.{k}" if prefix else str(k), v) for k, v in value.items()]
            return {name: text for part in parts for name, text in part.items()}
        return {prefix: str(value)}

    settings = flat("", OmegaConf.to_container(cfg, resolve=True))
    return {name: text for name, text in settings.items() if name not in _FREE}


def _hparams(cfg: DictConfig) -> dict[str, str | float]:
    """Return the overrides of this job, for TensorBoard's table of runs."""
    overrides = HydraConfig.get().overrides.task
    return {override_key(o): o.partition("=")[2] for o in overrides} | {"seed": cfg.seed}


def _scores_before(folder: Path) -> dict[str, float]:
    """Return the BLEU scores before tuning that a run recorded."""
    first = RunLog.first_line(folder)
    return {
        name.removeprefix("bleu/"): value
        for name, value in first.items()
        if name.startswith("bleu/")
    }


def _sentences(corpus: Corpus) -> Sentences:
    return Sentences.of(corpus.source, corpus.references)


def _sample(sentences: Sentences, size: int | None, seed: int) -> Sentences:
    """Return a seeded random sample, numbered anew."""
    if size is None or size >= len(sentences):
        return sentences
    chosen = np.sort(np.random.default_rng(seed).choice(len(sentences), size, replace=False))
    return sentences.subset(chosen.tolist())


def _evaluate(decoder: Decoder, weights: Weights, sentences: Sentences) -> Scored:
    if isinstance(decoder, KBestFiles):
        return evaluate_lists(decoder, weights, sentences)
    lines = translate(decoder, weights, sentences.sources)
    return score_corpus(lines, sentences), lines
