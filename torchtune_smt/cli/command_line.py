"""What a user gives: the command line as Hydra reads it, and configuration files of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.help import option_names, read_sentences
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.recipe import leaves
from torchtune_smt.core.resources import config_folder, from_here

# What a shell does not take as it is between double quotes.
_SPECIAL: Final = frozenset('"$`\\!')

# Options that have names of the user's in them.
_FILLED: Final = re.compile(r"(decoder\.)?(columns|test_columns|scale)\.")


class Arguments(NamedTuple):
    """A command's arguments: what sets options, and Hydra's flags, as ``--config-dir=settings``."""

    overrides: list[str]
    flags: list[str]


def split_arguments(arguments: Sequence[str]) -> Arguments:
    """Tell overrides and flags apart; Hydra takes no flags in the midst of overrides."""
    found = vars(get_args_parser().parse_intermixed_args(list(arguments)))
    overrides = found.pop("overrides")
    flags = []
    for name, value in found.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif isinstance(value, str):
            flags.append(f"{flag}={value}")
    return Arguments(overrides, flags)


def override_key(override: str) -> str:
    """Return what an override is about: ``+data.name=x`` is about ``data.name``."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def with_plus(override: str) -> str:
    """Return an override as Hydra wants it: names in a mapping that users fill need a ``+``."""
    key = override.partition("=")[0]
    return f"+{override}" if _FILLED.match(key) else override


def parsed(overrides: Iterable[str]) -> list[Override]:
    """Return overrides as Hydra reads them; raise InputError if it cannot."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise InputError(unreadable(error)) from None


def unreadable(error: OverrideParseException) -> str:
    """Return what is said of an override that Hydra cannot read."""
    reason = str(error).removeprefix(f"Error parsing override '{error.override}'").strip()
    return (
        f"{error.override}: cannot be read as OPTION=VALUE ({reason.splitlines()[0]}); a value "
        "with other characters than those of plain words wants quotes within quotes, as in "
        f"{typed('output', 'a, b.txt')}"
    )


def value_of(overrides: Sequence[str], key: str) -> Any:
    """Return the value that overrides give an option, as Hydra reads it; None: there is none."""
    found = [o for o in overrides if override_key(o) == key]
    if not found:
        return None
    override = parsed([found[-1]])[0]
    if override.is_sweep_override():
        raise InputError(f"{found[-1]}: give one {key} at a time")
    value = override.value()
    if "${" in str(value):
        raise InputError(f"{found[-1]}: ${{ would be replaced by something else; give {key} itself")
    return value


def refuse_repeated(overrides: Iterable[str]) -> None:
    """Raise InputError if an override has two entries of one name, of which Hydra takes the last.

    As in ``systems={a:[1],a:[2]}``; what is in a list, or quoted, is no entry.
    """
    for override in overrides:
        left = re.sub(
            "'[^']*'|\"[^\"]*\"", lambda text: re.sub(r"[][{},:]", "_", text[0]), override
        )
        left = re.sub(r"\[[^\[\]{}]*\]", "", left)
        while inner := re.search(r"\{([^{}]*)\}", left):
            names = Counter(re.findall(r"(?:^|,)\s*([^,:]+?)\s*:", inner[1]))
            for name in (name for name, count in names.items() if count > 1):
                raise InputError(
                    f"{override}: {name} is there twice, and one would be lost; write it once"
                )
            left = left[: inner.start()] + left[inner.end() :]


def quoted(text: str) -> str:
    """Return a text as the value of an override that means just this text."""
    return QuotedString(text, Quote.single).with_quotes()


def typed(option: str, value: str) -> str:
    """Return the override that gives an option a text, as it is typed in a shell."""
    try:
        plain = value_of([f"{option}={value}"], option) == value
    except InputError:
        plain = False
    if plain:
        return f"{option}={shlex.quote(value)}"
    text = quoted(value)
    # Double quotes around Hydra's single ones are the easiest to read.
    return f"{option}={shlex.quote(text) if set(text) & _SPECIAL else f'{chr(34)}{text}{chr(34)}'}"


def program_name() -> str:
    """Return how the installed command is typed here."""
    beside = Path(sys.executable).with_name("torchtune-smt")
    if shutil.which("torchtune-smt") or not beside.is_file():
        return "torchtune-smt"
    return shlex.quote(str(from_here(beside)))


def split_paths(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell arguments that name something that is there, or are no options at all, from options."""
    paths = [o for o in overrides if "=" not in o.lstrip("+~") or os.path.exists(o)]
    return paths, [override for override in overrides if override not in paths]


def systems_option(paths: Sequence[str]) -> str:
    """Return the override that has paths as ``systems``."""
    return f"systems=[{','.join(map(quoted, paths))}]"


class Given(NamedTuple):
    """An option, or the choice of a group, that the user gave.

    text: the override, or the option's name as it stands in a file.
    """

    option: str
    text: str
    path: Path | None = None
    line: int | None = None

    def refused(self, reason: str, cure: str = "") -> InputError:
        """Return the error of an option that has no effect, for some reason."""
        cure = cure or f"; {'leave it out' if self.path is None else 'take it out'}"
        return InputError(
            f"{reason}, and {self.text} would change nothing{cure}", path=self.path, line=self.line
        )


def given_options(overrides: Iterable[str]) -> Iterator[Given]:
    """Yield the options that overrides set, but for null, of which nothing is expected."""
    for override in parsed(overrides):
        for option, value in leaves(override.key_or_group, override.value()):
            if value is not None:
                yield Given(option, str(override.input_line))


def refuse_given(unused: Mapping[str, str], overrides: Iterable[str]) -> None:
    """Raise InputError if an override sets an option, or one of a group, that is `unused`."""
    for given in given_options(overrides):
        reason = reason_against(given.option, unused)
        if reason is not None:
            raise given.refused(reason)


def reason_against(option: str, unused: Mapping[str, str]) -> str | None:
    """Return why an option, or its group, has no effect; None if it has one."""
    parts = option.split(".")
    names = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((unused[name] for name in names if name in unused), None)


def added_options(command: str, cfg: DictConfig) -> Iterator[Given]:
    """Yield what the package's own files of a command lack, and is not read in ``${...}``."""
    found = [*_of_command_line(cfg), *_of_files(command, cfg)]
    yield from (given for given in found if not _is_named(cfg, given.option))


def _of_command_line(cfg: DictConfig) -> Iterator[Given]:
    choices = HydraConfig.get().runtime.choices
    for one in parsed(o for o in HydraConfig.get().overrides.task if o.startswith("+")):
        value, text = one.value(), str(one.input_line)
        if one.get_key_element().lstrip("+") not in choices or isinstance(value, dict):
            yield from (Given(option, text) for option, _ in leaves(one.key_or_group, value))
            continue
        # What is in the file that is chosen may belong elsewhere: `# @package _global_`.
        place = one.key_or_group if one.package is None else one.package
        if OmegaConf.select(cfg, place, throw_on_missing=False) is not None:
            yield Given(place, text)


def own_folders() -> list[Path]:
    """Return the folders of the user's own configurations."""
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    return [folder for folder in folders if folder.resolve() != config_folder().resolve()]


def brings_options() -> bool:
    """Return whether there may be options that are not of the package's own files."""
    task = HydraConfig.get().overrides.task
    return any(override.startswith("+") for override in task) or bool(own_folders())


def _of_files(command: str, cfg: DictConfig) -> Iterator[Given]:
    if not (folders := own_folders()):
        return
    # What the package's own files set may have no effect: they are of any combination of parts.
    known = set()
    for group, choice in HydraConfig.get().runtime.choices.items():
        path = config_folder() / str(group) / f"{choice}.yaml"
        if path.is_file():
            prefix = "" if group == "experiment" else f"{group}."
            known |= {f"{prefix}{name}" for name in read_sentences(path).options}
    for option, _ in leaves("", OmegaConf.to_container(cfg)):
        if option not in known:
            places = places_in_own_files(option)
            yield Given(option, option, *(places[0] if places else (folders[0], None)))


def places_in_own_files(option: str) -> list[tuple[Path, int]]:
    """Return the chosen files of the user's, and the lines, that set an option."""
    places, folders = [], own_folders()
    for group, choice in HydraConfig.get().runtime.choices.items():
        for path in (folder / group / f"{choice}.yaml" for folder in folders):
            if path.is_file():
                lines = dict(_lines(yaml.compose(path.read_text("utf-8")), ""))
                line = lines.get(option, lines.get(option.removeprefix(f"{group}.")))
                places += [] if line is None else [(path, line)]
    return places


def _lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the options that a YAML file sets, and their lines, counted from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from _lines(value, f"{prefix}{key.value}.")


def options_of_command(command: str) -> set[str]:
    """Return the groups and options of a command, those of the user's own files left out."""
    names, following = set(), [command]
    while following:
        path = config_folder() / f"{following.pop()}.yaml"
        names |= {name.partition(".")[0] for name in read_sentences(path).options}
        for entry in yaml.safe_load(path.read_text("utf-8")).get("defaults", []):
            if isinstance(entry, str):
                following += [entry] if entry != "_self_" else []
            else:
                names |= {str(name) for name in entry}
    return names - {"defaults"}


def nearest(cfg: DictConfig, option: str) -> str:
    """Return a question that names what may be meant: of the same group, or of none."""
    group, _, name = option.rpartition(".")
    if not group and (config_folder() / name).is_dir():
        return ""
    near = {other for other in option_names() if other != option and _has(cfg, other)}
    if group:
        start = f"{group.partition('.')[0]}."
        near = {other for other in near if other.startswith(start) or "." not in other}
    return did_you_mean(name, near)


def _has(cfg: DictConfig, option: str) -> bool:
    group, _, name = option.rpartition(".")
    holder: Any = OmegaConf.select(cfg, group) if group else cfg
    return OmegaConf.is_dict(holder) and name in holder


def _is_named(cfg: DictConfig, option: str) -> bool:
    """Return whether another option takes its value from one: ``model.folder=${foo}/m``."""
    parts = option.split(".")
    whole = [re.escape(".".join(parts[: n + 1])) for n in range(len(parts))]
    wanted = "|".join([*whole, rf"{whole[-1]}[.\[][^}}]*"])
    text = str(OmegaConf.to_container(cfg, resolve=False))
    return re.search(rf"\$\{{(?:[^}}]*[:,])?\.*(?:{wanted})\}}", text) is not None
