"""A run: prepare, tune, finish, in a folder of its own; the command and a notebook use it alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_writer
from torchtune_smt.core.weights_io import save_weights
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.metrics.base import Score
from torchtune_smt.runs.checkpoint import Checkpoints, NameFile, load_checkpoint
from torchtune_smt.runs.console import Console, contents, gained_nothing, summary
from torchtune_smt.runs.folder import (
    CHECKPOINT,
    COMPOUNDS,
    LOG,
    LONGER,
    NAMES,
    WEIGHTS,
    RunFolder,
    empty,
    is_finished,
    remove_lists,
)
from torchtune_smt.runs.log import GroupRecords, RunLog, SampleTranslations
from torchtune_smt.runs.parts import Parts
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.runs.task import (
    Task,
    evaluate_start,
    limits_of,
    named_files,
    open_task,
    read_files,
    score_of,
)
from torchtune_smt.runs.transcript import Transcript
from torchtune_smt.runs.tuning import Tuning, serve_workers
from torchtune_smt.tuners.grouping.tuner import GroupingTuner
from torchtune_smt.tuners.sentences import evaluate_by


@dataclass(eq=False)
class Run:
    """A run of tuning: `prepare`, `tune` and `finish`, in this order.

    folder: gets all that comes out.
    settings: all options, as they are shown; files that they name are read.
    fingerprint: what the result depends on: a run is resumed with the same.
    hparams: what tells the run from others in TensorBoard's table.
    record: writes to the folder how the run was configured; told whether a finished run is made
        longer.
    make_parts: makes the parts once more, in the workers of an engine.
    option: the option that chooses another folder.

    As attributes:
    task: from `prepare` on, as `rounds`.
    """

    folder: Path
    parts: Parts
    _: KW_ONLY
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    hparams: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()
    record: Callable[[bool], None] = lambda longer: None
    make_parts: Callable[[], Parts] | None = None
    option: str = "folder"
    task: Task = field(init=False)
    rounds: Rounds = field(init=False)

    def __post_init__(self) -> None:
        self._start = time.perf_counter()
        self.folder = Path(self.folder)
        self.tuning = Tuning(self.parts)
        self._fingerprint = dict(self.fingerprint)

    def prepare(
        self,
        *,
        resume: bool = False,
        longer: bool = False,
        overwrite: bool = False,
        may_write_model: bool = True,
        printed: Transcript | None = None,
    ) -> None:
        """Read and build what there is to tune, and score it, or take a stopped run up.

        resume: go on with the run of the folder.
        longer: it may be finished, and is given more rounds.
        overwrite: remove a run that the folder has.
        may_write_model: whether a model that is missing is built.
        printed: written to the folder from now on.
        """
        parts, folder = self.parts, self.folder
        own = RunFolder(folder, self.option)
        folder.mkdir(parents=True, exist_ok=True)
        self._resumed = resume
        if resume:
            self._check_finished(longer)
        else:
            if not overwrite:
                own.check_unused("resume it")
            own.check_foreign(parts.kept)
            built_in = getattr(parts.model, "folder", None)
            if parts.model is not None and parts.model.from_bitext and built_in is not None:
                own.check_model_apart(Path(built_in))
        # The tensors of a mini-batch are small: threads cost more than they bring, and decode
        # besides.
        torch.set_num_threads(1)
        task = self.task = open_task(parts, may_write_model=may_write_model)
        self._files = read_files(parts, self.settings, task.read)
        if not resume:
            named = [*named_files(parts, self.settings, task.read)]
            named += [("init.file", path) for path in parts.kept]
            own.check_not_read(named, parts.left_alone(folder))
        # All weights 0 leave stored lists as they are.
        self._as_they_came = task.decoder.stored and not bool(task.weights.parameter.any())
        if not resume:
            self.tuning.scale_start(task)
        self.rounds = self.tuning.open(task, folder, resumed=resume)
        if not resume:
            # Now that nothing can be wrong with the options of this one.
            if overwrite:
                empty(folder, parts.kept)
            self.record(False)
        if printed is not None:
            printed.open(folder / LOG, append=resume)
        self._names: NameFile | None = None
        self._fingerprint |= task.origin.digests() if task.origin else {}
        self._fingerprint |= limits_of(task.model, parts.decoding.options)
        if resume:
            self._take_up()
        else:
            self._score_start()
        if parts.dataset.splitter is not None:
            # So that the same words are split when the weights are used.
            parts.dataset.splitter.save(folder / COMPOUNDS)
        if self.tuning.uses_engine:
            serve_workers(self.tuning, task, self.make_parts or (lambda: parts))
        which = "the bitext" if parts.tune_on == "train" else "dev"
        plan = self.tuning.plan(folder)
        print(f"tuning on {len(task.tuning):,} sentences of {which}, {plan}", flush=True)

    def _check_finished(self, longer: bool) -> None:
        folder = self.folder
        if not is_finished(folder):
            return
        # What a kill at its end has left.
        self._tidy()
        if not (folder / CHECKPOINT).exists():
            kept = "" if self.parts.keep_lists else " (tuner.keep_lists=true keeps it)"
            raise InputError(
                f"this run is finished, and what more rounds would start from is not there{kept}",
                path=folder,
            )
        if not longer:
            raise self._finished()

    def _finished(self) -> InputError:
        """Return the error of a run that has nothing left to do."""
        return InputError(
            f"this run is finished; to make it longer give more rounds (tuner."
            f"{self.parts.tuner.unit}s=N), or another tuner.patience if none was better for long",
            path=self.folder,
        )

    def _take_up(self) -> None:
        run, folder = self.rounds, self.folder
        path, found = folder / CHECKPOINT, self._fingerprint
        self._names = load_checkpoint(path, self.task.weights, run, found, self._files)
        self._before = _scores_before(folder, self.task.sets, run.measure)
        done = run.progress
        # Without weights of its own it was killed while it ended, and does that again.
        ended = done.round > run.rounds or done.is_stale(run.patience)
        if ended and is_finished(folder):
            raise self._finished()
        try:
            run.check_left()
        except ValueError as error:
            raise InputError(f"tuner.{error}", path=folder) from None
        self._longer = (folder / WEIGHTS).exists()
        self.record(self._longer)
        print(f"resuming in {run.tuner.unit} {done.round}, after {done.sentences:,} sentences")

    def _score_start(self) -> None:
        run, task, self._longer = self.rounds, self.task, False
        print("scoring before tuning", flush=True)
        before = self._before = evaluate_start(task, self.tuning.by)
        self.tuning.take_met(task)
        run.progress.note_start(before["dev"].tuned, task.weights.parameter)
        scores = ", ".join(f"{name} BLEU {score.bleu:.2f}" for name, score in before.items())
        if run.name != "BLEU":
            scores = f"dev {run.shown(before['dev'].tuned)}, {scores}"
        order = " (the order of the lists, as all weights are 0)" if self._as_they_came else ""
        print(f"before tuning: {scores}{order}", flush=True)

    def tune(self) -> None:
        """Tune, round after round, and leave the resulting weights in place; see `Rounds.run`."""
        run, task, parts, folder = self.rounds, self.task, self.parts, self.folder
        with ExitStack() as stack:
            log = stack.enter_context(RunLog(folder, run.progress if self._resumed else None))
            samples = SampleTranslations(log, task.decoder, task.weights, task.sets["dev"])
            if not self._resumed:
                samples.record(0)
                shown = yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True)
                log.text("config", f"```yaml\n{shown}\n```")
                log.scalars(0, _numbers(self._before, run.measure))
                log.weights(0, task.weights)
                if parts.online and self.tuning.dimension is not None:
                    log.scalars(0, {"oscar/dimension": self.tuning.dimension})
            path, found = folder / CHECKPOINT, self._fingerprint
            saved = Checkpoints(path, found, parts.checkpoint_minutes, self._names, self._files)
            run.callbacks = [
                log,
                samples,
                Console(len(task.tuning) if parts.online else None),
                *([GroupRecords(log, folder)] if isinstance(run.tuner, GroupingTuner) else []),
                *self.callbacks,
                saved,
            ]
            try:
                run.run()
            finally:
                self.tuning.engine.close()
            self._log, self._open = log, stack.pop_all()

    def finish(self) -> float:
        """Evaluate the resulting weights and write all down; return the score of dev."""
        with self._open:
            return self._finish()

    def _finish(self) -> float:
        run, task, folder, log = self.rounds, self.task, self.folder, self._log
        progress, unit, before = run.progress, run.tuner.unit, self._before
        after: dict[str, Score] = {}
        signature = ""
        translations = {}
        for name, some in task.sets.items():
            by = self.tuning.by if name == "dev" else None
            found = self.tuning.known_dev(task) if name == "dev" else None
            found = found or evaluate_by(by, task.decoder, task.weights, some)
            after[name], lines = score_of(found), found.lines
            signature = signature or found.score.signature
            translations[name] = some.lines(lines)
        best = progress.best.round if progress.best is not None else 0
        tuned = _numbers(after, run.measure, "_tuned")
        reached = [f"best {unit}: {best or '0 (the start)'}"]
        if progress.round - 1 != best:
            reached.append(f"last {unit}: {progress.round - 1}, dev {run.shown(progress.last)}")
        if self._as_they_came:
            reached.append("before: the order of the lists, as all weights were 0")
        if after["dev"].tuned <= before["dev"].tuned:
            reached.append(gained_nothing(run))
        text = summary(before, after, signature, task.weights, run, reached, self._start)
        log.scalars(progress.sentences, tuned | {f"best_{unit}": best})
        log.text("summary", f"```\n{text}\n```")
        log.hparams(dict(self.hparams), tuned)
        if self._longer:
            self.record(False)
        for name, of_set in translations.items():
            with atomic_writer(folder / f"{name}.translations.txt", own=True) as file:
                file.writelines(of_set)
        note = self.parts.export(folder, task.weights)
        # Last: a folder with weights holds a run that is finished.
        save_weights(folder / WEIGHTS, task.weights, task.origin)
        (folder / LONGER).unlink(missing_ok=True)
        self._tidy()
        print(f"\n{text}\n{'-' * 72}\n{contents(folder)}")
        if note is not None:
            print(note)
        return after["dev"].tuned

    def _tidy(self) -> None:
        """Remove of a finished run its lists, unless they stay, and a checkpoint of no use then.

        Other checkpoints stay: from them a run can be made longer.
        """
        if not self.parts.keep_lists:
            for name in (CHECKPOINT, NAMES):
                (self.folder / name).unlink(missing_ok=True)
            remove_lists(self.folder)


def _scores_before(folder: Path, sets: Iterable[str], measure: Measure) -> dict[str, Score]:
    first = RunLog.first_numbers(folder, *(f"bleu/{name}" for name in sets))
    found = {name.removeprefix("bleu/"): Score(bleu, bleu) for name, bleu in first.items()}
    if measure != BLEU:
        tuned = measure.better(RunLog.first_numbers(folder, "metric/dev")["metric/dev"])
        found["dev"] = found["dev"]._replace(tuned=tuned)
    return found


def _numbers(scores: Mapping[str, Score], measure: Measure, end: str = "") -> dict[str, float]:
    """Return the scores of sets as they are recorded; beside BLEU the metric that was tuned."""
    own = {} if measure == BLEU else {f"metric/dev{end}": measure.better(scores["dev"].tuned)}
    return {f"bleu/{name}{end}": score.bleu for name, score in scores.items()} | own
