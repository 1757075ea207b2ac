"""``--help``: the options of a command, each with its sentence from ``conf/``."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from torchtune_smt.core.resources import config_folder

_WIDTH: Final = 80
NEEDLESS: Final = frozenset(
    "init sampler loss regularizer optimizer tuner parallel engine callbacks metric".split()
)
"""Groups of a run that have no part in how it decodes; minimum Bayes risk needs the metric."""

NEVER: Final = {
    **{group: f"translating takes no {group}" for group in NEEDLESS - {"metric"}},
    "seed": "translating draws nothing at random",
    "device": "translating works on the CPU alone",
    "lm": "translating takes the language model of the whole bitext",
    "report": "translating writes no report",
    "resume": "translating goes on with no run",
    "overwrite": "translating writes no run",
    "data.dev": "translating reads `input` alone",
    "data.test": "translating reads `input` alone",
}
"""Groups and options of ``train`` that change no translation, and why."""

# What a command can be given, as it shares files with others, and makes no use of.
_NEEDLESS: Final = {
    "build_model": {"data.dev", "data.test"},
    "translate": {*NEVER, "experiment"},
}
# How lines begin that are typed, and not read.
_AS_IS: Final = re.compile(r" |python |$")
_KEY: Final = re.compile(r"( *)(\w+):")
_ANOTHER: Final = re.compile(r"  - (\w+)(?:@(\w+))?$")


class Sentences(NamedTuple):
    """What the comments of a configuration file say: of the whole, and of each option by its name
    within the group (``solver.sigma``); empty where there is none.
    """

    file: list[str]
    options: dict[str, str]


def read_sentences(path: Path) -> Sentences:
    """Return the comments of a file, and of those of its folder that it is made of.

    A comment is that of the option behind it, and of those that follow without another one or a
    blank line between.
    """
    found = Sentences([], {})
    comment: list[str] = []
    outer: list[tuple[int, str]] = []
    top, fresh = True, True
    for line in path.read_text("utf-8").splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            if not fresh:
                comment, fresh = [], True
            comment.append(stripped[1:].removeprefix(" "))
            continue
        if top:
            found.file.extend(comment)
            comment, top = [], False
        if other := _ANOTHER.match(line):
            beside = path.with_name(f"{other[1]}.yaml")
            if beside.is_file():
                within = f"{other[2]}." if other[2] else ""
                said = read_sentences(beside).options.items()
                found.options.update({f"{within}{n}": text for n, text in said if n != "defaults"})
        if key := _KEY.match(line):
            indent = len(key[1])
            if not fresh and outer and outer[-1][0] != indent:
                comment = []
            while outer and outer[-1][0] >= indent:
                outer.pop()
            outer.append((indent, key[2]))
            name, sentence = ".".join(name for _, name in outer), " ".join(comment)
            found.options[name] = sentence or found.options.get(name, "")
        fresh = False
        if not stripped:
            comment = []
    return found


def help_text(
    command: str, program: str, overrides: Sequence[str] = (), folders: Sequence[Path] = ()
) -> str:
    """Return what ``--help`` prints of a command, typed as `program`, with some choices."""
    searched = ",".join(str(folder.absolute()) for folder in folders)
    more = [f"hydra.searchpath=[{searched}]"] if folders else []
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = compose(command, [*overrides, *more], return_hydra_config=True)
    choices = cfg.hydra.runtime.choices
    folders = [config_folder(), *folders]
    needless = _NEEDLESS.get(command, set())
    own = read_sentences(config_folder() / f"{command}.yaml")
    lines = [f"usage: {program} [OPTION=VALUE ...]", "", *_filled(own.file, ""), ""]
    groups = sorted({str(name) for name in choices if "/" not in str(name)} - needless - {"hydra"})
    if groups:
        lines += ["GROUP=CHOICE takes another choice of a group, with options of its own:", ""]
    for group in groups:
        names = {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
        lines += [
            f"  {group}={_shown(choices[group])}",
            *_wrapped(f"of {', '.join(sorted(names))}"),
        ]
    plain = OmegaConf.to_container(cfg)
    assert isinstance(plain, dict)
    hidden = {*groups, *needless, "hydra"}
    lines += ["", "Options, with what they are unless you say otherwise:"]
    if outside := {name: value for name, value in plain.items() if name not in hidden}:
        lines += ["", *_listed("", outside, own.options)]
    for group in groups:
        paths = [folder / group / f"{choices[group]}.yaml" for folder in folders]
        path = next((path for path in paths if path.is_file()), None)
        if path is None or not isinstance(plain.get(group), dict):
            continue
        said = read_sentences(path)
        own_leaves = dict(_leaves("", plain[group]))
        options = {n: v for n, v in own_leaves.items() if f"{group}.{n}" not in needless}
        lines += ["", f"{group}={choices[group]}", *_filled(said.file, "  ")]
        lines += _listed(f"{group}.", options, said.options)
    lines += ["", "--cfg job prints the configuration, --hydra-help what Hydra takes besides."]
    return "\n".join(lines)


def option_names() -> set[str]:
    """Return the names of all groups, and of all options of all choices and commands."""
    names = set()
    for path in config_folder().rglob("*.yaml"):
        group = path.parent.name if path.parent != config_folder() else ""
        if group != "experiment":
            for name in read_sentences(path).options:
                names.add(f"{group}.{name}" if group else name)
            names.add(group)
    return {name for name in names if name and not name.startswith(("defaults", "hydra"))}


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a group, by their names in it; names of features are no options."""
    for name, inner in value.items():
        if isinstance(inner, dict) and name != "values":
            yield from _leaves(f"{prefix}{name}.", inner)
        elif name != "_target_":
            yield f"{prefix}{name}", inner


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{_shown(inner)}' for name, inner in value.items())}}}"
    return str(value)


def _listed(group: str, values: Mapping[Any, Any], sentences: Mapping[str, str]) -> list[str]:
    """Return options, a line each, and under those that share a sentence what it says."""
    lines, names = [], [str(name) for name in values]
    for name, after in zip(names, [*names[1:], None], strict=False):
        lines.append(f"  {group}{name}={_shown(values[name])}")
        sentence = sentences.get(name, "")
        if after is None or sentence != sentences.get(after):
            lines += _wrapped(sentence)
    return lines


def _wrapped(sentence: str, indent: str = " " * 6) -> list[str]:
    return textwrap.wrap(
        sentence,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _filled(lines: Sequence[str], indent: str) -> list[str]:
    """Fill lines with sentences; commands stay as they are."""
    filled = []
    for as_is, some in itertools.groupby(lines, lambda line: bool(_AS_IS.match(line))):
        group = list(some)
        filled += [indent + line for line in group] if as_is else _wrapped(" ".join(group), indent)
    return [line.rstrip() for line in filled]
