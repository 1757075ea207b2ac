"""The command line as Hydra reads it: overrides, and flags such as ``--config-dir``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import (  # type: ignore[attr-defined]
    CommonTokenStream,
    InputStream,
    OverrideLexer,
)
from hydra.grammar.gen.OverrideParser import OverrideParser

from torchtune_smt.core.errors import InputError

# What a shell does not take as it is between double quotes.
_SPECIAL: Final = frozenset('"$`\\!')


class Arguments(NamedTuple):
    """A command's arguments.

    Attributes
    ----------
    overrides : list of str
        What sets options: ``loss=hinge``.
    flags : list of str
        Hydra's own, with their values: ``--config-dir=settings``.
    """

    overrides: list[str]
    flags: list[str]


def split_arguments(arguments: Sequence[str]) -> Arguments:
    """Tell overrides and flags apart, wherever they stand.

    Hydra itself takes flags in front of all overrides or behind them, but not in their midst.
    """
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


def leaves(option: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options within an option whose value may be a group, and their values."""
    if not isinstance(value, dict):
        yield option, value
        return
    for name, inner in value.items():
        yield from leaves(f"{option}.{name}" if option else str(name), inner)


def value_of(overrides: Sequence[str], key: str) -> Any:
    """Return the value that overrides give an option, as Hydra reads it; None where there is none.

    Raises
    ------
    InputError
        There are several values, as for a sweep; or it is an interpolation.
    HydraException
        Hydra cannot read the override.
    """
    found = [o for o in overrides if override_key(o) == key]
    if not found:
        return None
    override = OverridesParser.create().parse_overrides([found[-1]])[0]
    if override.is_sweep_override():
        raise InputError(f"{found[-1]}: give one {key} at a time")
    value = override.value()
    if "${" in str(value):
        raise InputError(f"{found[-1]}: ${{ would be replaced by something else; give {key} itself")
    return value


class _Names(HydraOverrideVisitor):
    """Reads a value as Hydra does, which takes the last of several entries of one name."""

    def visitDictContainer(self, ctx: OverrideParser.DictContainerContext) -> Any:  # noqa: N802
        pairs = (ctx.getChild(i) for i in range(1, ctx.getChildCount() - 1, 2))
        names = [self.visitDictKey(pair.getChild(0)) for pair in pairs]
        counts = Counter(str(getattr(name, "text", name)) for name in names)
        for name, count in counts.items():
            if count > 1:
                raise InputError(f"{name} is there twice, and one would be lost; write it once")
        return super().visitDictContainer(ctx)


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Raise InputError if an override has two entries of one name, as in ``{a:1,a:2}``.

    They must be overrides that Hydra can read.
    """
    for override in overrides:
        if "{" in override:
            parser = OverrideParser(CommonTokenStream(OverrideLexer(InputStream(override))))
            try:
                tree = parser.override()  # type: ignore[no-untyped-call]
                _Names(create_functions()).visit(tree)
            except InputError as error:
                raise InputError(f"{override}: {error}") from None


def quoted(text: str) -> str:
    """Return a text as the value of an override that means just this text."""
    return QuotedString(text, Quote.single).with_quotes()


def typed(option: str, value: str) -> str:
    """Return the override that gives an option a text, as it is typed in a shell."""
    try:
        plain = value_of([f"{option}={value}"], option) == value
    except (InputError, HydraException):
        plain = False
    if plain:
        return f"{option}={shlex.quote(value)}"
    text = quoted(value)
    # Double quotes around Hydra's single ones are the easiest to read.
    return f"{option}={shlex.quote(text) if set(text) & _SPECIAL else f'{chr(34)}{text}{chr(34)}'}"


def program_name() -> str:
    """Return how the installed command is typed here."""
    if shutil.which("torchtune-smt"):
        return "torchtune-smt"
    beside = Path(sys.executable).with_name("torchtune-smt")
    if not beside.is_file():
        return "torchtune-smt"
    inside = beside.is_relative_to(Path.cwd())
    return shlex.quote(str(beside.relative_to(Path.cwd()) if inside else beside))


def split_paths(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell arguments that name something that is there, or are no options at all, from options."""
    paths = [o for o in overrides if "=" not in o.lstrip("+~") or os.path.exists(o)]
    return paths, [override for override in overrides if override not in paths]


def systems_option(paths: Sequence[str]) -> str:
    """Return the override that has paths as ``systems``."""
    return f"systems=[{','.join(map(quoted, paths))}]"
