"""What commands compare: systems, and the set on which they do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf

from torchtune_smt.cli.command_line import (
    override_key,
    split_arguments,
    split_paths,
    systems_option,
)
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.wire import decoder_class, make_dataset
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import output_to
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.kbest.lists import Source
from torchtune_smt.runs.folder import METRICS, WEIGHTS
from torchtune_smt.runs.outputs import Compared, Output, below, found_systems

if TYPE_CHECKING:
    from torchtune_smt.core.snapshot import FrozenWeights
    from torchtune_smt.decoders.base import Decoder

# What commands read in the folder of a run.
_READ: Final = (
    *(WEIGHTS, METRICS, "config.yaml"),
    *(f"{split}.translations.txt" for split in ("train", "dev", "test")),
)

Given = str | Sequence[str] | ListConfig | DictConfig
"""A path, paths, or names with paths."""


def find_systems(
    given: Given, *, group_seeds: bool = True, marker: str = WEIGHTS
) -> dict[str, list[Output]]:
    """Return the outputs of each system by its name: `found_systems` of what an option has."""
    named = _named_paths(given)
    if not named:
        raise InputError("systems={} names no system; name one at least")
    return found_systems(named, group_seeds=group_seeds, marker=marker)


def files_read(given: Given) -> Iterator[Path]:
    """Yield the files that `find_systems` may find, and those of runs that commands read."""
    for path in (Path(path) for paths in _named_paths(given).values() for path in paths):
        yield path
        if path.is_dir():
            for name in _READ:
                yield from below(path, name)


def unused_grouping(given: Given, found: Mapping[str, Sequence[Output]]) -> dict[str, str]:
    """Return ``group_seeds`` with the reason, where it changes nothing of what was `found`."""
    if isinstance(given, DictConfig):
        return {"group_seeds": "systems= says which runs are one system"}
    outputs = [output for some in found.values() for output in some]
    if sum(output.is_recorded for output in outputs) < 2:
        return {"group_seeds": "there are no two runs that could differ in the seed"}
    return {}


def _named_paths(given: Given) -> dict[str, list[str]]:
    if not isinstance(given, DictConfig):
        return {"": paths_of("systems", given)}
    return {str(name): paths_of(f"systems.{name!s}", paths) for name, paths in given.items()}


def paths_of(option: str, files: Any) -> list[str]:
    """Return the paths of a list of files, which an option has; one may stand without a list."""
    if isinstance(files, str):
        return [files]
    if not isinstance(files, ListConfig | list):
        raise InputError(f"{option} must be a file or a list of files, not {files}")
    if not files:
        raise InputError(f"{option} is an empty list of files; name one file at least")
    for path in files:
        if not isinstance(path, str | int | float):
            raise InputError(
                f"{option} has {path} in the place of a file; runs of a system are given with "
                "its name, as in systems={base:[a1,a2],new:[b1,b2]}"
            )
    return [str(path) for path in files]


def compared(cfg: DictConfig, split: str, *, takes_references: bool = True) -> Compared:
    """Return the set on which systems are compared; what is given of ``data`` is checked."""
    data = None
    if "data" in cfg:
        make_dataset(cfg)
        found: Any = OmegaConf.to_container(cfg.data, resolve=True)
        data = {n: None if OmegaConf.is_missing(cfg.data, n) else v for n, v in found.items()}
    given = cfg.get("references") if takes_references else None
    references = None if given is None else paths_of("references", given)
    keys = map(override_key, HydraConfig.get().overrides.task)
    typed = {key.removeprefix("data.") for key in keys if key.startswith("data.")}
    return Compared(split, open_run, _longest_source, data, references, takes_references, typed)


def open_run(
    split: str, weights: Path, corpus: Corpus, more: Sequence[Any] = ()
) -> tuple[Decoder, FrozenWeights, list[Source]]:
    """Return the decoder of a run, given by its weights, these, and a set as it is to decode it.

    Sentences of ``train`` alone are left out of the decoder's model, as in tuning.
    """
    # Most comparisons need no decoder.
    from torchtune_smt.cli.decoding import open_tuned, taken_up

    train = corpus if split == "train" else None
    decoder, own, train_index = open_tuned(*taken_up(weights), more, train)
    sources = [Source(i, words, train_index.get(i, -1)) for i, words in enumerate(corpus.source)]
    return decoder, own, sources


def _longest_source(weights: Path) -> int | None:
    from torchtune_smt.cli.decoding import taken_up

    cfg, *_ = taken_up(weights)
    most = decoder_class(cfg).longest_source(cfg.decoder)
    # What else it may be in a damaged record is refused where the decoder is made.
    return most if isinstance(most, int) else None


def run_on_systems(
    name: str,
    function: Callable[[DictConfig], None],
    named: Callable[[list[str], list[str], list[str]], list[str]] = lambda _, options, __: options,
) -> int:
    """Run a command with the arguments of the process: those that are no options are systems.

    named: takes these paths, of which it may take some away, options and flags; returns options.
    """
    overrides, flags = split_arguments(sys.argv[1:])
    paths, options = split_paths(overrides)
    options = named(paths, options, flags)
    if paths:
        options = [*options, systems_option(paths)]
    return hydra_main(name)(function)(arguments=[*options, *flags])


def write_table(cfg: DictConfig, styled: Callable[[str], str]) -> None:
    """Print a table, or write it to ``output``, in the style that is asked for or is read best."""
    style = cfg.table or "markdown"
    if cfg.output in (None, "-") and sys.stdout.isatty() and cfg.table in (None, "text"):
        style = "screen" if cfg.table is None else "folded"
    table = styled(style)
    with output_to(cfg.output) as file:
        file.write(table)
