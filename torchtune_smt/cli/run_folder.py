"""Run folders: the overrides of an earlier run, taken up again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from torchtune_smt.errors import InputError

_RESOLVER = re.compile(r"\$\{[^}]*:")


def override_key(override: str) -> str:
    """Return what an override is about: ``+data.name=x`` is about ``data.name``."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def with_recorded(folder: Path, given: Sequence[str]) -> list[str]:
    """Return the overrides given now, then those that a run recorded and that they do not replace.

    The configuration is composed anew from ``conf/`` and these overrides. Nothing that a folder
    says is instantiated: classes come from the user's own command line or configuration alone.

    Raises
    ------
    InputError
        The record is damaged, or holds a ``_target_`` that is not given again.
    """
    path = folder / ".hydra" / "overrides.yaml"
    if not path.is_file():
        return list(given)
    try:
        recorded = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(recorded, list) or not all(isinstance(o, str) for o in recorded):
            raise ValueError
    except (ValueError, OmegaConfBaseException, yaml.YAMLError):
        raise InputError("is no list of overrides; the run folder is damaged", path=path) from None
    keys = {override_key(override) for override in given}
    kept = [
        o
        for o in recorded
        if override_key(o) not in keys and not override_key(o).startswith("hydra")
    ]
    for override in kept:
        # Resolvers could put a class together from pieces.
        if "_target_" in override or _RESOLVER.search(override):
            raise InputError(
                f"the run was given {override}: classes are not taken from a folder, so give this "
                "override again",
                path=path,
            )
    # Flags such as --config-dir stand before all overrides.
    return [*given, *kept]
