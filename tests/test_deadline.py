"""A deadline for each sentence: it may end a run, and never changes a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from commands import MODEL, SMALL, Outcome, run_command, train

from torchtune_smt.core.arrays import UInt8
from torchtune_smt.decoders import grammar_decoder
from torchtune_smt.runs import checkpoint

OPTIONS = ["data.test=null", "threads=1", "tuner.batch_size=10", "tuner.checkpoint_minutes=0"]


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


def test_late_and_resumed_with_more_time(place: Path) -> None:
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
    whole = train(place, "no_deadline", *OPTIONS).folder
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (place / "late" / name).read_bytes() == (whole / name).read_bytes()
