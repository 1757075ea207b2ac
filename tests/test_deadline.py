"""A deadline for each sentence: it may end a run, and never changes a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from commands import MODEL, SMALL, Outcome, run_command, train, train_until_saved

from torchtune_smt.core.arrays import UInt8
from torchtune_smt.decoders import grammar_decoder
from torchtune_smt.runs import checkpoint

OPTIONS = ["data.test=null", "threads=1", "tuner.batch_size=10", "tuner.checkpoint_minutes=0"]
NAMES = ["weights.txt.gz", "dev.translations.txt"]


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> list[bytes]:
    """What a run without a deadline writes."""
    run = train(place, "no_deadline", *OPTIONS)
    return [(run.folder / name).read_bytes() for name in NAMES]


def written(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in NAMES]


def train_until_late(place: Path, saves: int, *arguments: str) -> Outcome:
    """Run train, whose searches take too long once it has saved its state so many times."""
    saved = 0
    save = checkpoint.save_checkpoint

    def counted(*values: Any) -> None:
        nonlocal saved
        save(*values)
        saved += 1

    @contextmanager
    def late(seconds: float | None) -> Iterator[UInt8]:
        assert seconds == 5
        yield np.full(1, saved >= saves, np.uint8)

    with (
        mock.patch.object(checkpoint, "save_checkpoint", counted),
        mock.patch.object(grammar_decoder, "deadline", late),
    ):
        return run_command("train", *arguments, folder=place)


def test_killed_and_resumed_within_the_deadline(place: Path, undisturbed: list[bytes]) -> None:
    options = [*MODEL, *SMALL, *OPTIONS, "decoder.seconds=1000", "hydra.run.dir=in_time"]
    train_until_saved(place, *options)
    outcome = run_command("train", "resume=in_time", folder=place).check()
    assert "resuming in epoch 1, after 10 sentences" in outcome.out
    assert written(place / "in_time") == undisturbed


def test_late_and_resumed_with_more_time(place: Path, undisturbed: list[bytes]) -> None:
    """What was done before stays; with the same seconds the same sentence ends the run again."""
    options = [*MODEL, *SMALL, *OPTIONS, "decoder.seconds=5", "hydra.run.dir=late"]
    first = train_until_late(place, 2, *options)
    assert first.code == 1
    assert "its search took more than 5 s (decoder.seconds); give more" in first.err
    saved = (place / "late" / "checkpoint.pt").read_bytes()
    again = train_until_late(place, 0, "resume=late", "threads=1")
    assert (again.code, again.err) == (1, first.err)
    assert "resuming in epoch 1, after 20 sentences" in again.out
    assert (place / "late" / "checkpoint.pt").read_bytes() == saved
    assert not (place / "late" / "weights.txt.gz").exists()
    run_command("train", "resume=late", "decoder.seconds=1000", folder=place).check()
    assert written(place / "late") == undisturbed
