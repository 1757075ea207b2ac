"""Objects of the classes that the configuration names."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.missing_classes import why_missing
from torchtune_smt.core.accepts import argument_rules
from torchtune_smt.core.errors import InputError
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.parallel.engine import usable_cores


def make(
    cfg: DictConfig,
    group: str,
    *methods: str,
    offered: Mapping[str, Callable[[], Any]] | None = None,
    without: Collection[str] = (),
    **changed: Any,
) -> Any:
    """Return the object that a group of the configuration describes.

    Parameters
    ----------
    methods : str
        What it must have.
    offered : mapping, optional
        What else there is: an argument of the class with one of these names gets what the callable
        returns, which is not asked otherwise.
    without : collection of str
        Options of the group that are not arguments of the class.
    changed
        Arguments in the place of those of the configuration.

    Raises
    ------
    InputError
        There is no such class, or an argument is out of range or of a wrong type.
    """
    with option_errors(group, OmegaConf.select(cfg, group)):
        given = arguments(cfg, group) | changed
        given = {name: value for name, value in given.items() if name not in without}
        partial = instantiate(given, _partial_=True, _convert_="object")
        check_scalars(group, partial)
    more = {}
    if offered:
        names = argument_names(partial.func)
        more = {name: what() for name, what in offered.items() if name in names}
    with option_errors(group, OmegaConf.select(cfg, group)):
        part = partial(**more)
    check_part(group, part, *methods)
    return part


def make_list(cfg: DictConfig, option: str, *methods: str) -> list[Any]:
    """Return the objects that a list of the configuration describes."""
    parts = []
    for place, entry in enumerate(OmegaConf.select(cfg, option)):
        with option_errors(option, entry if OmegaConf.is_dict(entry) else None):
            partial = instantiate(entry, _partial_=True)
            check_scalars(f"{option}[{place}]", partial)
            part = partial()
        check_part(option, part, *methods)
        parts.append(part)
    return parts


def make_templates(cfg: DictConfig) -> list[Any]:
    """Return the configured templates of sparse features."""
    templates = make_list(cfg, "features.templates", "name", "features")
    names = [template.name for template in templates]
    for template, name in zip(templates, names, strict=True):
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
    with option_errors("data", given):
        return Dataset(**given)


def class_of(cfg: DictConfig, group: str) -> Any:
    """Return the class that a group of the configuration names.

    Raises
    ------
    InputError
        There is no such class, or its module fails.
    """
    target = str(OmegaConf.select(cfg, group)["_target_"])
    try:
        with _quiet_hydra():
            kind = get_object(target)
    except (ImportError, ValueError) as error:
        raise InputError(f"{group}._target_={target}: {why_missing(target, error)}") from None
    try:
        inspect.signature(kind)
    except (TypeError, ValueError):
        raise InputError(f"{group}._target_={target}: this is no class") from None
    return kind


@contextmanager
def _quiet_hydra() -> Iterator[None]:
    """Let Hydra log nothing of a class that it does not find: the error says it."""
    logger = logging.getLogger("hydra.utils")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def decoder_class(cfg: DictConfig) -> type[Decoder]:
    """Return the class of the configured decoder."""
    kind = class_of(cfg, "decoder")
    if not inspect.isclass(kind) or not issubclass(kind, Decoder):
        raise InputError(
            f"decoder: {kind.__name__} is no torchtune_smt.decoders.Decoder; is it meant here?"
        )
    return kind


def argument_names(kind: Callable[..., Any]) -> set[str]:
    """Return the names of a class's arguments, with those that it hands on to its parents."""
    if not inspect.isclass(kind):
        return set(inspect.signature(kind).parameters)
    names: set[str] = set()
    for parent in kind.__mro__:
        if "__init__" in vars(parent):
            parameters = inspect.signature(vars(parent)["__init__"]).parameters.values()
            names.update(parameter.name for parameter in parameters)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                break
    return names


def check_scalars(group: str, made: functools.partial[Any]) -> None:
    """Raise InputError where a class is given what it does not accept, or no number or switch."""
    for name, rule in argument_rules(made.func, scalars=True).items():
        if name in made.keywords and not rule.fits(made.keywords[name]):
            raise InputError(f"{group}.{name} must be {rule.text}, not {made.keywords[name]!r}")


def check_part(option: str, part: object, *methods: str) -> None:
    """Raise InputError if an object made from the configuration lacks what it is needed for."""
    for method in methods:
        if not hasattr(part, method):
            raise InputError(
                f"{option}: {type(part).__name__} has no {method!r}; is it meant here?"
            )


def thread_count(threads: int | None) -> int:
    """Return the number of threads: as configured, or one for each core there is to use."""
    return usable_cores() if threads is None else threads


def arguments(cfg: DictConfig, group: str) -> dict[str, Any]:
    """Return a group's class and arguments.

    Where an override names another class, the arguments that the group's file has for its own one
    are left out: the other takes those given beside it.
    """
    found: dict[str, Any] = {
        str(name): value for name, value in OmegaConf.select(cfg, group).items()
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
