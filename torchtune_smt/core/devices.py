"""Where tensors are worked on."""

from __future__ import annotations

import torch


def check_device(device: str) -> None:
    """Raise ValueError unless a device is there: ``cpu`` or ``cuda``."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, and torch finds no CUDA device; set device=cpu")
