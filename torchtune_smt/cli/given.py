"""What a user sets, and what of it has no effect; needs nothing of the parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser

from torchtune_smt.cli.command_line import leaves
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder

OFFERED: Final = {"model": ("model", "lm"), "templates": ("features",), "threads": ("threads",)}
"""What a decoder may be given by the name of an argument, and the options that say what it is."""


def given_options(overrides: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the options that overrides set, and the overrides that do.

    The choice of a group is an option with the name of the group. One that is set to null is left
    out: nothing is expected of it.
    """
    given = list(overrides)
    parsed_all = OverridesParser.create().parse_overrides(given)
    for override, parsed in zip(given, parsed_all, strict=True):
        for option, value in leaves(parsed.key_or_group, parsed.value()):
            if value is not None:
                yield option, override


def refuse_given(unused: Mapping[str, str], overrides: Iterable[str]) -> None:
    """Raise InputError if an override sets an option that has no effect.

    Parameters
    ----------
    unused : mapping
        The groups and options without effect, each with the reason.
    """
    for option, override in given_options(overrides):
        reason = reason_against(option, unused)
        if reason is not None:
            raise InputError(f"{reason}, and {override} would change nothing; leave it out")


def reason_against(option: str, unused: Mapping[str, str]) -> str | None:
    """Return why an option, or the group that it belongs to, has no effect; None if it has one."""
    parts = option.split(".")
    names = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((unused[name] for name in names if name in unused), None)


def brings_options() -> bool:
    """Return whether there may be options that are not of the package's own files."""
    task = HydraConfig.get().overrides.task
    return any(override.startswith("+") for override in task) or bool(own_folders())


def own_folders() -> list[Path]:
    """Return the folders of the user's own configurations."""
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    return [folder for folder in folders if folder.resolve() != config_folder().resolve()]
