"""How much a model takes on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig

# A model of so many bytes takes a while to open, and memory: it is announced.
LARGE: Final = 10**9


def model_size(cfg: DictConfig) -> int:
    """Return the bytes of all files that the group ``model`` names; none, where it is not built."""
    paths = [Path(value) for name, value in cfg.model.items() if _is_path(name, value)]
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)


def announcement(cfg: DictConfig) -> str | None:
    """Return what is said before a large model is opened."""
    size = model_size(cfg)
    return None if size < LARGE else f"opening a model of {size / 1e9:.1f} GB"


def _is_path(name: Any, value: Any) -> bool:
    return isinstance(value, str) and name not in ("_target_", "alignment_file") and value != ""
