"""``train``: build what is missing, tune, evaluate."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import (
    given_options,
    override_key,
    program_name,
    quoted,
    split_arguments,
    typed,
    value_of,
)
from torchtune_smt.cli.hydra_main import Sweep, hydra_main
from torchtune_smt.cli.options import require_all
from torchtune_smt.cli.parts import check_grouping, make_parts, parts_elsewhere
from torchtune_smt.cli.record import Settings, record, says_where, take_up
from torchtune_smt.cli.spending import refuse_unused, unused_options
from torchtune_smt.cli.wire import make_list
from torchtune_smt.core.errors import InputError, NotWrittenError, shown, warn
from torchtune_smt.core.recipe import leaves
from torchtune_smt.core.resources import from_here
from torchtune_smt.core.stopping import advice_when_stopped
from torchtune_smt.core.textio import read_lines
from torchtune_smt.runs.folder import (
    CHECKPOINT,
    WEIGHTS,
    RunFolder,
    is_finished,
    is_of_runs,
    is_of_sweeps,
)
from torchtune_smt.runs.outputs import WITHOUT_EFFECT
from torchtune_smt.runs.records import refuse_links
from torchtune_smt.runs.run import Run
from torchtune_smt.runs.transcript import Transcript, transcript


def _train(cfg: DictConfig, settings: Settings, reported: list[Path]) -> float:
    """Tune the configured system; `reported` gets the folder of a run to be reported on."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    own = RunFolder(folder, _folder_option())
    own.check_name()
    with advice_when_stopped(lambda: _how_to_go_on(folder)), own.claimed():
        if cfg.resume is None:
            if not cfg.overwrite:
                own.check_unused(_how_to_go_on(folder))
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
    check_grouping(cfg)
    parts = make_parts(cfg)
    parts.check()
    unused = unused_options(cfg, parts, HydraConfig.get().runtime.choices)
    given = settings.given if settings.has_run else HydraConfig.get().overrides.task
    refuse_unused(unused, given)
    require_all(cfg, needless=unused)
    if "optimizer" in parts.used and "regularizer" in unused:
        print(f"{unused['regularizer']}: {parts.regularizer} has no effect")
    options = [one.option for one in given_options(given)]
    start = "init.values."
    parts.required = [name.removeprefix(start) for name in options if name.startswith(start)]
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    job = {override_key(o): o.partition("=")[2] for o in HydraConfig.get().overrides.task}
    run = Run(
        folder,
        parts,
        settings=plain,
        fingerprint={
            name: str(value)
            for name, value in leaves("", plain)
            if name not in _FREE and not name.startswith("engine.")
        },
        hparams={k: v for k, v in job.items() if k not in WITHOUT_EFFECT} | {"seed": cfg.seed},
        callbacks=make_list(cfg, "callbacks", "on_start", "on_report", "on_work", "on_end"),
        record=lambda longer: record(folder, cfg, longer=longer),
        make_parts=parts_elsewhere(cfg),
        option=_folder_option(),
    )
    run.prepare(
        resume=cfg.resume is not None,
        longer=any(override_key(o) in _MORE for o in settings.given),
        overwrite=cfg.overwrite,
        may_write_model=settings.may_write_model,
        printed=printed,
    )
    run.tune()
    score = run.finish()
    if (command := _next_command(cfg, run)) is not None:
        print(f"Now try: {command}")
    return score


def main() -> int:
    """Tune; ``resume=FOLDER`` goes on with a run that was stopped, with its own settings."""
    given, flags = split_arguments(sys.argv[1:])
    settings, more = Settings(given), []
    resumed = value_of(given, "resume")
    _refuse_misplaced(given, flags, resumes=bool(resumed))
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
    code = hydra_main("train", sweep, partial(settings.apply, goes_on=True))(task)(more)
    if sweep.folder is not None or reported:
        # Of no use to a single run without a report.
        from torchtune_smt.cli.compare import compare_runs

        many = sweep.folder is not None
        failed = compare_runs(
            sweep.folder or reported[0],
            sweep.done if many else reported,
            table=many,
            report=bool(reported),
            flags=own,
        )
        code = code or (failed if reported else 0)
        if sweep.failed:
            # Behind the table, which may be buffered.
            sys.stdout.flush()
            print(sweep.summary(), file=sys.stderr)
    return code


def _next_command(cfg: DictConfig, run: Run) -> str | None:
    """Return the command that applies a run's weights, as it is typed in a shell, if one does."""
    weights = typed("weights", str(from_here(run.folder / WEIGHTS)))
    program = program_name()
    if run.parts.decoder.stored:
        which = "test" if cfg.decoder.get("test") else "dev"
        lists, own = cfg.decoder[which], cfg.decoder
        if own.get(f"{which}_scores") is not None:
            # They have no words that could be written.
            return None
        first = lists if isinstance(lists, str) else lists[0]
        # As these were read, new ones are to be.
        read_so = {name: own.get(name) for name in ("format", "missing", "score", "sizes")}
        of = {"columns": (own.get("columns") or {}).get(which), "scale": own.get("scale")}
        for group, some in of.items():
            read_so |= {f"{group}.{name}": value for name, value in (some or {}).items()}
        more = [
            typed(name, value) if isinstance(value, str) else f"{name}={json.dumps(value)}"
            for name, value in read_so.items()
            if value is not None
        ]
        return " ".join([program, "rerank", weights, typed("input", str(first)), *more])
    # As people write it, not in tokens.
    lines = map(str.strip, read_lines(run.parts.dataset.source_file("dev")))
    typed_ones = (line for line in lines if line and line.isprintable())
    few = min(typed_ones, key=lambda line: (len(line.split()) < 3, len(line)), default="...")
    return f"echo {shlex.quote(few)} | {program} translate {weights} input=-"


def _how_to_go_on(folder: Path) -> str:
    if is_finished(folder):
        return "the run in its folder is finished"
    if (folder / CHECKPOINT).is_file():
        where = [shlex.quote(o) for o in HydraConfig.get().overrides.task if says_where(o)]
        return f"go on with {' '.join([typed('resume', str(from_here(folder))), *where])}"
    return "there is nothing to resume yet"


# With these a finished run may be made longer.
_MORE: Final = ("tuner.epochs", "tuner.iterations", "tuner.patience")
# What may differ between a run and the one that resumes it: it does not change the result.
_FREE: Final = (
    *(*WITHOUT_EFFECT, *_MORE, "decoder.seconds", "decoder.keep_mb", "parallel.workers"),
    *("tuner.checkpoint_minutes", "tuner.keep_lists"),
)


def _refuse_misplaced(given: Sequence[str], flags: Sequence[str], *, resumes: bool) -> None:
    """Raise InputError if an option of the command line would be ignored, or break something."""
    mode = str(value_of(given, "hydra.mode")).upper()
    many = "--multirun" in flags or mode == RunMode.MULTIRUN.name
    if many and resumes:
        raise InputError("resume goes on with one run, and -m begins many; leave -m out")
    misplaced = {
        "hydra.output_subdir": ": the records of a run always lie in its .hydra; leave it out",
        "hydra.job.chdir": ": paths are those seen from where the command is given; leave it out",
    }
    if many:
        misplaced["hydra.run.dir"] = " is of a single run; of -m give hydra.sweep.dir"
    if resumes:
        own = ": resume goes on in the run's own folder; leave it out"
        misplaced |= dict.fromkeys(("hydra.run.dir", "overwrite"), own)
    for override in given:
        option, value = override_key(override), override.partition("=")[2].strip("'\"")
        if option in ("hydra.run.dir", "hydra.sweep.dir") and not value:
            raise InputError(f"{override} names no folder; name one, or leave it out")
        if option in misplaced and value not in ("null", "false"):
            raise InputError(override + misplaced[option])
        if not many and option.startswith("hydra.sweep."):
            raise InputError(f"{override} is of sweeps (-m); of a single run give hydra.run.dir")


def _folder_option() -> str:
    many = HydraConfig.get().mode == RunMode.MULTIRUN
    return "hydra.sweep.dir (or hydra.sweep.subdir)" if many else "hydra.run.dir"
