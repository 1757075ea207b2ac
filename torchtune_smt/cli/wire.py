"""Objects of the classes that the configuration names."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.options import chosen_name
from torchtune_smt.core.accepts import argument_rules
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe, argument_names, check_part, named_errors
from torchtune_smt.core.resources import from_here
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder, checked_decoder
from torchtune_smt.features.templates import TranslationTemplate

# Of a class that it does not find Hydra logs nothing: the error says it.
logging.getLogger("hydra.utils").addFilter(lambda record: False)


def make(
    cfg: DictConfig, group: str, *methods: str, without: Collection[str] = (), **changed: Any
) -> Any:
    """Return the object that a group of the configuration describes; see `recipe`."""
    return _made(group, arguments(cfg, group) | changed, methods, without)()


def recipe(cfg: DictConfig, group: str, *methods: str, without: Collection[str] = ()) -> Recipe:
    """Return what makes the object that a group of the configuration describes.

    methods: what it must have.
    without: options of the group that are not arguments of the class.

    Raises InputError: there is no such class; or, when it makes the object, an argument is bad.
    """
    made = _made(group, arguments(cfg, group), methods, without)
    return Recipe(class_of(cfg, group), made, OmegaConf.select(cfg, group))


def make_list(cfg: DictConfig, option: str, *methods: str) -> list[Any]:
    """Return the objects that a list of the configuration describes."""
    entries = enumerate(OmegaConf.select(cfg, option))
    return [_made(option, entry, methods, place=f"[{place}]")() for place, entry in entries]


def _made(
    option: str,
    given: Mapping[str, Any],
    methods: Sequence[str],
    without: Collection[str] = (),
    place: str = "",
) -> Callable[..., Any]:
    def made(*first: Any, **more: Any) -> Any:
        with named_errors(option, given):
            try:
                own = {name: value for name, value in given.items() if name not in without}
                partial = instantiate(own, _partial_=True, _convert_="object")
            except InstantiationException as error:
                cause = error.__cause__ or error
                if target := re.match(r"Error locating target '(.*)', set env", str(error)):
                    raise InputError(f"{option}: {target[1]}: {_why_missing(cause)}") from None
                if isinstance(cause, ValueError | TypeError):
                    raise cause from None
                raise InputError(f"{option}: {_one_line(cause)}") from None
            check_scalars(f"{option}{place}", partial)
            part = partial(*first, **more)
        check_part(option, part, *methods)
        return part

    return made


def make_templates(cfg: DictConfig) -> list[Any]:
    """Return the configured templates of sparse features."""
    templates = make_list(cfg, "features.templates", "name")
    names = [template.name for template in templates]
    for template, name in zip(templates, names, strict=True):
        if not isinstance(template, TranslationTemplate):
            check_part("features.templates", template, "features")
        elif hasattr(template, "features"):
            raise InputError(
                f"features.templates: {type(template).__name__} has features and "
                "translation_features; make two templates of it"
            )
        if not (isinstance(name, str) and name.isidentifier() and not name.endswith("_")):
            raise InputError(
                f"features.templates: the name of {type(template).__name__} must be a word of "
                f"letters, digits and _ that ends in no _, not {name!r}"
            )
    if len(set(names)) < len(names):
        raise InputError(f"features.templates has one twice: {', '.join(names)}")
    return templates


def make_dataset(cfg: DictConfig, *needed: str) -> Dataset:
    """Return the configured data; options that are not needed may be missing."""
    for name in needed:
        # Says what is missing.
        cfg.data[name]
    given: dict[str, Any] = {
        str(name): None if OmegaConf.is_missing(cfg.data, name) else cfg.data[name]
        for name in cfg.data
    }
    with named_errors("data", given):
        return Dataset(**given)


def class_of(cfg: DictConfig, group: str) -> Any:
    """Return the class that a group of the configuration names."""
    target = str(OmegaConf.select(cfg, group)["_target_"])
    try:
        kind = get_object(target)
    except (ImportError, ValueError) as error:
        raise InputError(f"{group}._target_={target}: {_why_missing(error)}") from None
    try:
        inspect.signature(kind)
    except (TypeError, ValueError):
        raise InputError(f"{group}._target_={target}: this is no class") from None
    return kind


def _why_missing(error: BaseException) -> str:
    """Return why there is no such class, or where its module fails, in one line."""
    cause = error.__cause__ or error
    if isinstance(cause, SyntaxError) and cause.filename is not None:
        place = f"{from_here(Path(cause.filename))}:{cause.lineno}"
        return f"{place}: {cause.msg}; correct this line"
    finders = (Path(hydra.__file__).parent, Path(importlib.__file__).parent)
    # Where a module was when it failed.
    trace = error.__cause__.__traceback__ if error.__cause__ else None
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith("<frozen ")
        and not any(Path(frame.filename).is_relative_to(folder) for folder in finders)
    ]
    if frames:
        place = f"{from_here(Path(frames[-1].filename))}:{frames[-1].lineno}"
        return f"{place}: {type(cause).__name__}: {_one_line(cause)}"
    return f"there is no such class ({_one_line(cause)}); is it spelt so, and in this folder?"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n"))


def decoder_class(cfg: DictConfig) -> type[Decoder]:
    """Return the class of the configured decoder."""
    return checked_decoder(class_of(cfg, "decoder"))


# What a decoder may be given by the name of an argument, and the options that say what it is.
_OFFERED: Final = {"model": ("model", "lm"), "templates": ("features",), "threads": ("threads",)}


def not_taken_by_decoder(cfg: DictConfig, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the options of which the decoder makes no use, each with the reason."""
    kind, name = decoder_class(cfg), chosen_name(cfg, choices, "decoder")
    return {
        option: f"{name} {kind.takes_not.get(argument, f'takes no {argument}')}"
        for argument, options in _OFFERED.items()
        if argument not in argument_names(kind)
        for option in options
    }


def check_scalars(group: str, made: functools.partial[Any]) -> None:
    """Raise InputError where a class is given what it does not accept, or no number or switch."""
    for name, rule in argument_rules(made.func, scalars=True).items():
        if name in made.keywords and not rule.fits(made.keywords[name]):
            raise InputError(f"{group}.{name} must be {rule.text}, not {made.keywords[name]!r}")


def arguments(cfg: DictConfig, group: str) -> dict[str, Any]:
    """Return a group's class and arguments.

    Where an override names another class, the file's arguments for its own one are left out.
    """
    # What is nested may refer to other groups, which it loses sight of as an argument.
    found: dict[str, Any] = {
        str(name): OmegaConf.to_container(value, resolve=True)
        if OmegaConf.is_config(value)
        else value
        for name, value in OmegaConf.select(cfg, group).items()
    }
    if not HydraConfig.initialized():
        return found
    given = {override_key(override) for override in HydraConfig.get().overrides.task}
    if f"{group}._target_" not in given:
        return found
    return {
        name: value
        for name, value in found.items()
        if name == "_target_" or f"{group}.{name}" in given
    }
