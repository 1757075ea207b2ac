"""``train``: build what is missing, tune, evaluate."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import (
    leaves,
    override_key,
    program_name,
    quoted,
    split_arguments,
    typed,
    value_of,
)
from torchtune_smt.cli.compare import compare_runs
from torchtune_smt.cli.exports import export, kept_files, left_alone
from torchtune_smt.cli.group_learners import check_grouping
from torchtune_smt.cli.hydra_main import error_line, hydra_main, warn
from torchtune_smt.cli.options import is_ours, require_all
from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.read_files import named_files, read_files
from torchtune_smt.cli.run_folder import Settings, record, refuse_links, says_where, take_up
from torchtune_smt.cli.run_options import folder_option, refuse_misplaced
from torchtune_smt.cli.spending import groups_taken
from torchtune_smt.cli.stopping import advice_when_stopped, raise_if_stopped
from torchtune_smt.cli.sweep import Sweep
from torchtune_smt.cli.systems import WITHOUT_EFFECT
from torchtune_smt.cli.task import evaluate_start, limits_of, open_task, score_of
from torchtune_smt.cli.tuning import Tuning
from torchtune_smt.cli.unused import refuse_unused, unused_options
from torchtune_smt.cli.wire import make_list
from torchtune_smt.cli.workers import serve_workers
from torchtune_smt.core.errors import InputError, NotWrittenError, shown
from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.core.weights_io import save_weights
from torchtune_smt.metrics.base import Score
from torchtune_smt.runs.checkpoint import Checkpoints, load_checkpoint
from torchtune_smt.runs.console import Console
from torchtune_smt.runs.folder import (
    CHECKPOINT,
    COMPOUNDS,
    LOG,
    LONGER,
    NAMES,
    WEIGHTS,
    check_foreign,
    check_model_apart,
    check_name,
    check_not_read,
    check_unused,
    claimed,
    empty,
    is_finished,
    is_of_runs,
    is_of_sweeps,
    remove_lists,
)
from torchtune_smt.runs.group_records import GroupRecords
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.samples import SampleTranslations
from torchtune_smt.runs.summary import contents, gained_nothing, summary
from torchtune_smt.runs.transcript import Transcript, transcript
from torchtune_smt.tuners.grouping.tuner import GroupingTuner
from torchtune_smt.tuners.sentences import evaluate_by


def _train(cfg: DictConfig, settings: Settings, reported: list[Path]) -> float:
    """Tune the configured system; returns the score of dev, for sweeps.

    Parameters
    ----------
    reported : list of Path
        Gets the folder of a run that is to be reported on.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    check_name(folder, folder_option())
    with advice_when_stopped(lambda: _how_to_go_on(folder)), claimed(folder, folder_option()):
        if cfg.resume is not None:
            _check_more(cfg, settings, folder)
        elif not cfg.overwrite:
            check_unused(folder, _how_to_go_on(folder), folder_option())
        if cfg.resume is None:
            refuse_links(folder, is_of_runs)
        with transcript() as printed:
            try:
                score = _tune(cfg, settings, folder, printed)
            except NotWrittenError as error:
                if is_finished(folder) or not (folder / CHECKPOINT).is_file():
                    raise
                # What it has done since it was saved is all that is lost.
                message = f"{error.message}, and {_how_to_go_on(folder)}"
                raise NotWrittenError(message, path=error.path) from None
    if cfg.report:
        reported.append(folder)
    return score


def _tune(cfg: DictConfig, settings: Settings, folder: Path, printed: Transcript) -> float:
    start = time.perf_counter()
    # The tensors of a mini-batch are small: threads cost more than they bring, and decode besides.
    torch.set_num_threads(1)
    check_grouping(cfg)
    parts = Parts(cfg)
    _check(cfg, parts)
    unused = unused_options(cfg, parts, HydraConfig.get().runtime.choices)
    refuse_unused(unused)
    require_all(cfg, needless=unused)
    if cfg.resume is None:
        check_foreign(folder, kept_files(cfg), folder_option())
        built_in = cfg.model.get("folder")
        if parts.model is not None and parts.model.from_bitext and built_in is not None:
            check_model_apart(folder, Path(built_in), folder_option())
    if "optimizer" in groups_taken(cfg) and "regularizer" in unused:
        print(f"{unused['regularizer']}: {parts.regularizer} has no effect")
    tuning = Tuning(cfg, parts)
    callbacks = make_list(cfg, "callbacks", "on_start", "on_report", "on_work", "on_end")
    task = open_task(cfg, parts, may_write_model=settings.may_write_model)
    decoder, weights, sets = task.decoder, task.weights, task.sets
    sentences, origin = task.tuning, task.origin
    files = read_files(cfg, parts, task.read)
    if cfg.resume is None:
        named = [*named_files(cfg, parts, task.read), *(("init.file", p) for p in kept_files(cfg))]
        check_not_read(folder, named, left_alone(cfg, parts, folder), folder_option())
    # All weights 0 leave stored lists as they are.
    as_they_came = decoder.stored and not bool(weights.parameter.any())
    run = tuning.open(task, folder, resumed=cfg.resume is not None)
    if cfg.resume is None:
        # Now that nothing can be wrong with the options of this one.
        if cfg.overwrite:
            empty(folder, kept_files(cfg))
        record(folder, cfg)
    printed.open(folder / LOG, append=cfg.resume is not None)
    tuner, unit = run.tuner, run.tuner.unit
    fingerprint = _fingerprint(cfg)
    _, *steps = origin.text.split() if origin and origin.is_model else [""]
    lacking = {}
    if "lowercase" in steps[1:]:
        # It was the first step once, and the settings of a run from then are the same. A model of
        # that text is another one, too, which says less.
        fingerprint["text"] = " ".join(steps)
        lacking["text"] = (
            "is of a run of an earlier version, which lowercased text first, and so split "
            f"some words in other places than now ({', '.join(steps)}); "
            "start the run anew"
        )
    fingerprint |= origin.digests() if origin else {}
    fingerprint |= limits_of(task.model, cfg.decoder)
    names, longer = None, False
    if cfg.resume is not None:
        before = _scores_before(folder, sets, run.name)
        names = load_checkpoint(folder / CHECKPOINT, weights, run, fingerprint, files, lacking)
        done = run.progress
        # Without weights of its own it was killed while it ended, and does that again.
        ended = done.round > run.rounds or done.is_stale(run.patience)
        if ended and is_finished(folder):
            raise _finished(cfg, folder, done.round - 1)
        try:
            run.check_left()
        except ValueError as error:
            raise InputError(f"tuner.{error}", path=folder) from None
        longer = (folder / WEIGHTS).exists()
        record(folder, cfg, longer=longer)
        print(f"resuming in {unit} {done.round}, after {done.sentences:,} sentences")
    else:
        print("scoring before tuning", flush=True)
        before = evaluate_start(task, tuning.by)
        tuning.take_met(task)
        run.progress.note_start(before["dev"].tuned, weights.parameter)
        scores = ", ".join(f"{name} BLEU {score.bleu:.2f}" for name, score in before.items())
        if run.name != "BLEU":
            scores = f"dev {run.shown(before['dev'].tuned)}, {scores}"
        order = " (the order of the lists, as all weights are 0)" if as_they_came else ""
        print(f"before tuning: {scores}{order}", flush=True)
    if parts.dataset.splitter is not None:
        # So that the same words are split when the weights are used.
        parts.dataset.splitter.save(folder / COMPOUNDS)
    if tuning.uses_engine:
        callbacks = [serve_workers(cfg, tuning, task), *callbacks]
    which = "the bitext" if cfg.tuner.tune_on == "train" else "dev"
    print(f"tuning on {len(sentences):,} sentences of {which}, {tuning.plan(folder)}", flush=True)

    with RunLog(folder, run.progress if cfg.resume is not None else None) as log:
        samples = SampleTranslations(log, decoder, weights, sets["dev"])
        if cfg.resume is None:
            samples.record(0)
            log.text("config", f"```yaml\n{OmegaConf.to_yaml(cfg, resolve=True)}\n```")
            first = {f"bleu/{name}": score.bleu for name, score in before.items()}
            own = {} if run.name == "BLEU" else {"metric/dev": before["dev"].tuned}
            log.scalars(0, first | own)
            log.weights(0, weights)
            if tuning.online and tuning.dimension.value is not None:
                log.scalars(0, {"oscar/dimension": tuning.dimension.value})
        minutes = cfg.tuner.get("checkpoint_minutes", math.inf)
        run.callbacks = [
            log,
            samples,
            Console(len(sentences) if tuning.online else None),
            *([GroupRecords(log, folder)] if isinstance(tuner, GroupingTuner) else []),
            *callbacks,
            Checkpoints(folder / CHECKPOINT, fingerprint, minutes, names, files),
        ]
        progress = run.run()
        after: dict[str, Score] = {}
        signature = ""
        translations = {}
        for name, some in sets.items():
            found = evaluate_by(tuning.by if name == "dev" else None, decoder, weights, some)
            after[name], lines = score_of(found), found.lines
            signature = signature or found.score.signature
            translations[name] = some.lines(lines)
        best = progress.best.round if progress.best is not None else 0
        tuned = {f"bleu/{name}_tuned": score.bleu for name, score in after.items()}
        if run.name != "BLEU":
            tuned["metric/dev_tuned"] = after["dev"].tuned
        reached = [f"best {unit}: {best or '0 (the start)'}"]
        if progress.round - 1 != best:
            reached.append(f"last {unit}: {progress.round - 1}, dev {run.shown(progress.last)}")
        if as_they_came:
            reached.append("before: the order of the lists, as all weights were 0")
        if after["dev"].tuned <= before["dev"].tuned:
            reached.append(gained_nothing(run))
        text = summary(before, after, signature, weights, run, reached, start)
        log.scalars(progress.sentences, tuned | {f"best_{unit}": best})
        log.text("summary", f"```\n{text}\n```")
        log.hparams(_hparams(cfg), tuned)
        if longer:
            record(folder, cfg)
        for name, of_set in translations.items():
            with atomic_writer(folder / f"{name}.translations.txt", own=True) as file:
                file.writelines(of_set)
        note = export(cfg, parts, folder, weights)
        # Last: a folder with weights holds a run that is finished.
        save_weights(folder / WEIGHTS, weights, origin)
        (folder / LONGER).unlink(missing_ok=True)
        _tidy(cfg, folder)
    print(f"\n{text}\n{'-' * 72}\n{contents(folder)}")
    if note is not None:
        print(note)
    print(f"Now try: {_next_command(cfg, parts, folder)}")
    return after["dev"].tuned


def main() -> int:
    """Tune; ``resume=FOLDER`` goes on with a run that was stopped, with its own settings."""
    try:
        given, flags = split_arguments(sys.argv[1:])
        settings, more = Settings(given), []
        resumed = value_of(given, "resume")
        refuse_misplaced(given, flags, resumes=bool(resumed))
        if resumed:
            folder = Path(str(resumed))
            if not (folder / CHECKPOINT).is_file() and not (folder / WEIGHTS).is_file():
                raise InputError("holds no run that can be resumed; check the path", path=folder)
            refuse_links(folder)
            settings = take_up(folder, given, resumes=True)
            if settings.elsewhere:
                left = shown(" ".join(settings.elsewhere))
                warn([f"not taken from the run's record: {left}; give again what is to hold here"])
            more = [*settings.recorded, f"hydra.run.dir={quoted(str(folder))}"]
        sweeps = [o for o in given if override_key(o) == "hydra.sweep.dir"]
        if sweeps and "${" not in sweeps[-1]:
            refuse_links(Path(str(value_of(sweeps, "hydra.sweep.dir"))), is_of_sweeps)
        own = [flag for flag in flags if flag.startswith("--config-dir=")]
        sweep = Sweep()
        reported: list[Path] = []
        task = partial(_train, settings=settings, reported=reported)
        code = hydra_main("train", sweep)(task)(more)
        if sweep.folder is not None:
            failed = compare_runs(
                sweep.folder, sweep.done, table=True, report=bool(reported), flags=own
            )
            code = code or (failed if reported else 0)
            if sweep.failed:
                # Behind the table, which may be buffered.
                sys.stdout.flush()
                print(sweep.summary(), file=sys.stderr)
        elif reported:
            code = code or compare_runs(reported[0], reported, table=False, report=True, flags=own)
        return code
    except (InputError, HydraException) as error:
        raise_if_stopped()
        print(error_line(error), file=sys.stderr)
        return 1


def _next_command(cfg: DictConfig, parts: Parts, folder: Path) -> str:
    """Return the command that applies a run's weights, as it is typed in a shell."""
    path = folder / WEIGHTS
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    weights = typed("weights", str(path))
    program = program_name()
    if parts.decoder.stored:
        lists = cfg.decoder.get("test") or cfg.decoder.dev
        first = lists if isinstance(lists, str) else lists[0]
        missing = cfg.decoder.get("missing")
        filled = "" if missing is None else f" missing={missing}"
        return f"{program} rerank {weights} {typed('input', str(first))}{filled}"
    # As people write it, not in tokens.
    lines = map(str.strip, read_lines(parts.dataset.source_file("dev")))
    typed_ones = (line for line in lines if line and line.isprintable())
    few = min(typed_ones, key=lambda line: (len(line.split()) < 3, len(line)), default="...")
    return f"echo {shlex.quote(few)} | {program} translate {weights} input=-"


def _tidy(cfg: DictConfig, folder: Path) -> None:
    """Remove of a finished run its lists, unless they are to stay, and a checkpoint of no use then.

    Other checkpoints stay: from them a run can be made longer.
    """
    if not cfg.tuner.get("keep_lists", True):
        for name in (CHECKPOINT, NAMES):
            (folder / name).unlink(missing_ok=True)
        remove_lists(folder)


def _check_more(cfg: DictConfig, settings: Settings, folder: Path) -> None:
    """Raise InputError if a run is finished, and is not made longer, or cannot be."""
    if not is_finished(folder):
        return
    # What a kill at its end has left.
    _tidy(cfg, folder)
    if not (folder / CHECKPOINT).exists():
        kept = "" if cfg.tuner.get("keep_lists", True) else " (tuner.keep_lists=true keeps it)"
        raise InputError(
            f"this run is finished, and what more rounds would start from is not there{kept}",
            path=folder,
        )
    if not {"tuner.epochs", "tuner.iterations", "tuner.patience"} & set(
        map(override_key, settings.given)
    ):
        raise _finished(cfg, folder)


def _finished(cfg: DictConfig, folder: Path, done: int | None = None) -> InputError:
    """Return the error of a run that has nothing left to do, after so many rounds."""
    option = next(f"tuner.{name}" for name in ("epochs", "iterations") if name in cfg.tuner)
    after = "" if done is None else f", after {done} of them"
    return InputError(
        f"this run is finished{after}; to make it longer give more rounds ({option}=N), or another "
        "tuner.patience if none was better for long",
        path=folder,
    )


def _how_to_go_on(folder: Path) -> str:
    """Return what is said when the run was stopped."""
    if is_finished(folder):
        return "the run in its folder is finished"
    if (folder / CHECKPOINT).is_file():
        inside = folder.is_relative_to(Path.cwd())
        path = folder.relative_to(Path.cwd()) if inside else folder
        where = [shlex.quote(o) for o in HydraConfig.get().overrides.task if says_where(o)]
        return f"go on with {' '.join([typed('resume', str(path)), *where])}"
    return "there is nothing to resume yet"


def _check(cfg: DictConfig, parts: Parts) -> None:
    """Refuse combinations that make no sense, before anything is done."""
    if is_ours(cfg.decoder) and cfg.decoder.get("k") == 1:
        raise InputError(
            "decoder.k=1: lists of one hypothesis leave nothing to choose, and nothing can be "
            "learned from them; give 2 or more"
        )
    if parts.model is not None and cfg.tuner.tune_on == "train":
        parts.model.check_training(cfg.lm == "folds")


# What may differ between a run and the one that resumes it: it does not change the result.
_FREE = (
    *WITHOUT_EFFECT,
    "decoder.seconds",
    "decoder.keep_mb",
    "parallel.workers",
    "tuner.epochs",
    "tuner.iterations",
    "tuner.patience",
    "tuner.checkpoint_minutes",
    "tuner.keep_lists",
)


def _fingerprint(cfg: DictConfig) -> dict[str, str]:
    """Return every setting that the result depends on, by name."""
    settings = leaves("", OmegaConf.to_container(cfg, resolve=True))
    return {
        name: str(value)
        for name, value in settings
        if name not in _FREE and not name.startswith("engine.")
    }


def _hparams(cfg: DictConfig) -> dict[str, str | float]:
    """Return the overrides of this job, for TensorBoard's table of runs."""
    overrides = HydraConfig.get().overrides.task
    given = {override_key(o): o.partition("=")[2] for o in overrides}
    return {k: v for k, v in given.items() if k not in WITHOUT_EFFECT} | {"seed": cfg.seed}


def _scores_before(folder: Path, sets: Iterable[str], metric: str) -> dict[str, Score]:
    """Return the scores before tuning that a run recorded."""
    first = RunLog.first_line(folder)
    try:
        found = {name: Score(first[f"bleu/{name}"], first[f"bleu/{name}"]) for name in sets}
        if metric != "BLEU":
            found["dev"] = found["dev"]._replace(tuned=first["metric/dev"])
        return found
    except KeyError as error:
        raise InputError(
            f"{folder}: metrics.jsonl has no {error.args[0]} before tuning; start the run anew"
        ) from None
