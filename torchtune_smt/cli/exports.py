"""Tuned weights as the decoder of a model, or of lists, takes them."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from torchtune_smt.cli.parts import Parts
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.models.moses_ini_writing import INI, export_to_ini, files_of_ini


def kept_files(cfg: DictConfig) -> list[Path]:
    """Return the files that `export` reads, which nobody may remove before."""
    kept = [] if cfg.model.get("ini") is None else [Path(cfg.model.ini)]
    start = _ini_of_start(cfg)
    return kept if start is None else [*kept, *files_of_ini(start)]


def left_alone(cfg: DictConfig, parts: Parts, folder: Path) -> list[Path]:
    """Return the files of `kept_files` if `export` writes over none of them; else none.

    It writes nothing where the ``moses.ini`` that it would copy is the one of the folder.
    """
    copied = _ini_of_start(cfg) if parts.model is None else cfg.model.get("ini")
    own = folder / INI
    return kept_files(cfg) if copied and own.exists() and own.samefile(copied) else []


def export(cfg: DictConfig, parts: Parts, folder: Path, weights: NamedWeights) -> str | None:
    """Write tuned weights to a run's folder for another decoder, if there is one.

    That is the model's, or where lists were tuned from a ``moses.ini`` on, the one that it is of.

    Returns
    -------
    str, optional
        Why nothing is written, although there is such a decoder.
    """
    if parts.model is not None:
        return parts.model.export(folder, weights)
    start = _ini_of_start(cfg)
    if start is None or not parts.decoder.stored:
        return None
    if cfg.decoder.get("features", "all") != "all":
        return f"no {INI} is written: decoder.features may leave out features of {start}"
    return export_to_ini(folder, start, weights)


def _ini_of_start(cfg: DictConfig) -> Path | None:
    """Return the ``moses.ini`` whose weights tuning begins with."""
    given = cfg.init.get("file")
    return None if given is None or Path(given).suffix != ".ini" else Path(given)
