"""What came out of a row's run, and with which versions."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import tables
from runs import REPOSITORY, Run, read_log
from tuned import TEST, Corpus

Kind = TypeVar("Kind", bound=tables.Result)


def measured(kind: type[Kind], run: Run, corpus: Corpus, folder: Path, /, **described: Any) -> Kind:
    """Return the result of a row whose run is finished, and try its weights.

    Parameters
    ----------
    kind : class
        Of the result.
    folder : path
        The row's, which gets the translations of test.
    described
        All that the run does not say.
    """
    devtest = corpus.score("devtest", run.overrides, run.folder)
    test = folder / TEST
    features = corpus.test(run.overrides, run.folder, test)
    log, (begin, end) = read_log(run.folder), run.dates
    return kind(
        active=features.active,
        reused=features.reused,
        atomic=features.atomic,
        iterations=log.iterations,
        best=log.best,
        dev=log.dev,
        devtest=devtest,
        test=corpus.bleu("test", test),
        minutes=run.minutes,
        cpu_minutes=run.cpu_minutes,
        begin=begin,
        end=end,
        overrides=list(run.overrides),
        versions=versions(),
        **described,
    )


def training_sentences(tuning_set: str, wanted: int, corpus: Corpus) -> int:
    """Return how many training sentences a row tunes on; `wanted` is 0 for all."""
    size = corpus.sizes["train"]
    return min(wanted or size, size) if "train" in tuning_set else 0


def versions() -> dict[str, str]:
    """Return what took part in a row, and its version."""
    names = ("torch", "numpy", "numba", "sacrebleu")
    return {
        "torchtune_smt": _commit() or metadata.version("torchtune_smt"),
        "Python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }


def _commit() -> str:
    """Return the commit of this clone; empty where it is none, marked where files differ."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
