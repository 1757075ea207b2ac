"""Folders of models and of runs in which something is of another kind than it should be."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fuzz_checkpoint
import fuzz_model
from kinds import KINDS, Surroundings
from omegaconf import OmegaConf
from targets import Check, Different, Target, Verdict, drawer

from torchtune_smt.cli.record import take_up
from torchtune_smt.cli.systems import find_systems
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.models import load_model
from torchtune_smt.models.built import BuiltModel
from torchtune_smt.runs.checkpoint import NameFile, StepFile
from torchtune_smt.runs.curves import read_metrics
from torchtune_smt.runs.folder import empty, is_of_runs
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.records import recorded_data, refuse_links
from torchtune_smt.runs.transcript import Transcript


def _models(source: type[BuiltModel], name: str, folder: Path) -> Check:
    whole, place = folder / "whole", folder / "models" / "model"
    fuzz_model.build(whole, source)
    expected = fuzz_model.translations(load_model(whole, folds=True))
    names = [f"model/{path.relative_to(whole)}" for path in sorted(whole.rglob("*"))]
    names += ["model/.lm.arpa.gz.cache.12345678.part", "model", ".model.12345678.part"]
    names += [".model.12345678.old", "other"]
    around = Surroundings(folder / "around")

    def check(case: int) -> Verdict:
        draw = drawer(name, case)
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(whole, place)
        path, kind = place.parent / draw.choice(names), draw.choice(KINDS)
        anew = draw.random() < 0.3
        around.plant(path, kind)
        try:
            used = place
            if anew:
                # It may make use of parts of the other one.
                used = place.with_name("new")
                fuzz_model.build(used, source)
            found = fuzz_model.translations(load_model(used, folds=True))
        finally:
            around.check()
        if found != expected:
            raise Different(f"with {path.name} as {kind}")
        return "same"

    return check


def _append_step(folder: Path) -> None:
    steps = StepFile(folder / "checkpoint.pt")
    steps.begin("of the checkpoint", 0)
    steps.append(Vocabulary(["a"]), {})


def _write_run(folder: Path) -> None:
    folder.mkdir()
    fuzz_checkpoint.write(folder / "checkpoint.pt")
    fuzz_checkpoint.fill(folder / "lists")
    _append_step(folder)
    (folder / "metrics.jsonl").write_text('{"step": 0, "bleu/dev": 40.0}\n')
    (folder / "train.log").write_text("what was printed\n")
    (folder / "weights.txt.gz").write_bytes(gzip.compress(b"a=1\n", mtime=0))
    (folder / "config.yaml").write_text("data: {name: example}\nseed: 1\n")
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text("- seed=1\n")
    (folder / "tensorboard").mkdir()


def _read_run(folder: Path) -> object:
    """Return what commands read of a run; nothing of it may be waited for."""
    found = find_systems(OmegaConf.create([str(folder)]))
    features, weights = read_weights(folder / "weights.txt.gz")
    return [
        [len(outputs) for outputs in found.values()],
        list(take_up(folder, [], resumes=True).overrides),
        recorded_data(folder),
        RunLog.first_numbers(folder, "bleu/dev"),
        str(read_metrics(folder)),
        features.names(range(len(features))),
        str(weights),
    ]


def _resume(folder: Path) -> object:
    found = fuzz_checkpoint.result(folder / "checkpoint.pt")
    lists = ListStore.open(folder / "lists", n_dense=2)
    try:
        lists.load_state_dict(fuzz_checkpoint.fill(folder.with_name("lists")).state_dict())
    except ValueError as error:
        # As `load_checkpoint` says it.
        raise InputError(str(error)) from None
    return [found, lists.sizes]


def _append(folder: Path) -> None:
    """Write what a run writes where it lies, or removes."""
    names = NameFile(folder / "checkpoint.pt")
    names.append(Vocabulary(["a", "b"]))
    _append_step(folder)
    printed = Transcript()
    printed.open(folder / "train.log", append=False)
    printed.close()
    fuzz_checkpoint.write(folder / "checkpoint.pt")
    fuzz_checkpoint.fill(folder / "lists")
    with RunLog(folder):
        pass


def _overwrite(folder: Path) -> None:
    refuse_links(folder, is_of_runs)
    empty(folder)
    _append(folder)


def _runs(folder: Path) -> Check:
    whole, place = folder / "whole", folder / "run"
    _write_run(whole)
    names = [str(path.relative_to(whole)) for path in sorted(whole.rglob("*"))]
    names += [".checkpoint.pt.12345678.part", ".lists.12345678.old", "checkpoint.steps"]
    names += [".hydra/longer.yaml", "test.translations.txt", "mine"]
    around = Surroundings(folder / "around")
    uses: list[Callable[[Path], object]] = [_read_run, _resume, _overwrite]
    expected = {}
    for use in uses:
        shutil.copytree(whole, place)
        expected[use] = use(place)
        shutil.rmtree(place)

    def check(case: int) -> Verdict:
        draw = drawer("run-kinds", case)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place)
        path, kind, use = place / draw.choice(names), draw.choice(KINDS), draw.choice(uses)
        around.plant(path, kind)
        try:
            found = use(place)
        finally:
            around.check()
        # What cannot be there is as what is not there.
        if found != expected[use] and path.exists() and path.name != ".hydra":
            raise Different(f"with {path.name} as {kind}")
        return "same"

    return check


TARGETS = {
    "model-kinds": Target(partial(_models, fuzz_model.BitextModel, "model-kinds"), 120),
    "phrase-kinds": Target(partial(_models, fuzz_model.PhraseModel, "phrase-kinds"), 60),
    "run-kinds": Target(_runs, 200),
}
