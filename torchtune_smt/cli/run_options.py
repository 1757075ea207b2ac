"""Hydra's own options of a run's folder: those that would do nothing, or harm, are refused."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from torchtune_smt.cli.command_line import override_key, value_of
from torchtune_smt.core.errors import InputError


def refuse_misplaced(given: Sequence[str], flags: Sequence[str], *, resumes: bool) -> None:
    """Raise InputError if an option of the command line would be ignored, or break something.

    Parameters
    ----------
    given : sequence of str
        The overrides.
    flags : sequence of str
        Hydra's, as `torchtune_smt.cli.command_line.split_arguments` returns them.
    resumes : bool
        Whether a run is taken up.
    """
    keys = {override_key(override): override for override in given}
    mode = str(value_of(given, "hydra.mode")).upper()
    many = "--multirun" in flags or mode == RunMode.MULTIRUN.name
    if many and resumes:
        raise InputError("resume goes on with one run, and -m begins many; leave -m out")
    for option, why in {
        "hydra.output_subdir": "the records of a run always lie in its .hydra",
        "hydra.job.chdir": "paths are those seen from where the command is given",
    }.items():
        if option in keys and value_of(given, option) not in (None, False):
            raise InputError(f"{keys[option]}: {why}; leave it out")
    for option in ("hydra.run.dir", "hydra.sweep.dir"):
        if option in keys and not keys[option].partition("=")[2].strip("'\""):
            raise InputError(f"{keys[option]} names no folder; name one, or leave it out")
    for option, override in keys.items():
        if resumes and option in ("hydra.run.dir", "overwrite"):
            raise InputError(f"{override}: resume goes on in the run's own folder; leave it out")
        if many and option == "hydra.run.dir":
            raise InputError(f"{override} is of a single run; of -m give hydra.sweep.dir")
        if not many and option.startswith("hydra.sweep."):
            raise InputError(f"{override} is of sweeps (-m); of a single run give hydra.run.dir")


def folder_option() -> str:
    """Return the option that says where the run that Hydra has begun lies."""
    many = HydraConfig.get().mode == RunMode.MULTIRUN
    return "hydra.sweep.dir (or hydra.sweep.subdir)" if many else "hydra.run.dir"
