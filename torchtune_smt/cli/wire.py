"""Objects of the classes that the configuration names."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.errors import option_errors, why_missing
from torchtune_smt.core.accepts import argument_rules
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe, check_part
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder, checked_decoder
from torchtune_smt.parallel.engine import usable_cores


def make(
    cfg: DictConfig, group: str, *methods: str, without: Collection[str] = (), **changed: Any
) -> Any:
    """Return the object that a group of the configuration describes; see `recipe`."""
    return _made(cfg, group, methods, without, changed, {})


def recipe(cfg: DictConfig, group: str, *methods: str, without: Collection[str] = ()) -> Recipe:
    """Return what makes the object that a group of the configuration describes.

    methods: what it must have.
    without: options of the group that are not arguments of the class.

    Raises InputError: there is no such class; or, when it makes the object, an argument is out of
        range or of a wrong type.
    """

    def made(*first: Any, **more: Any) -> Any:
        return _made(cfg, group, methods, without, {}, more, first)

    return Recipe(class_of(cfg, group), made, OmegaConf.select(cfg, group))


def _made(
    cfg: DictConfig,
    group: str,
    methods: Sequence[str],
    without: Collection[str],
    changed: Mapping[str, Any],
    more: Mapping[str, Any],
    first: Sequence[Any] = (),
) -> Any:
    given = arguments(cfg, group) | dict(changed)
    with option_errors(group, given):
        given = {name: value for name, value in given.items() if name not in without}
        partial = instantiate(given, _partial_=True, _convert_="object")
        check_scalars(group, partial)
        part = partial(*first, **more)
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

    Raises InputError: there is no such class, or its module fails.
    """
    target = str(OmegaConf.select(cfg, group)["_target_"])
    try:
        with _quiet_hydra():
            kind = get_object(target)
    except (ImportError, ValueError) as error:
        raise InputError(f"{group}._target_={target}: {why_missing(target, error)}") from None
    try:
        inspect.signature(kind)
    except TypeError:
        raise InputError(f"{group}._target_={target}: this is no class") from None
    except ValueError:
        raise InputError(f"{group}._target_={target}: its arguments are not known") from None
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
    return checked_decoder(class_of(cfg, "decoder"))


def check_scalars(group: str, made: functools.partial[Any]) -> None:
    """Raise InputError where a class is given what it does not accept, or no number or switch."""
    for name, rule in argument_rules(made.func, scalars=True).items():
        if name in made.keywords and not rule.fits(made.keywords[name]):
            raise InputError(f"{group}.{name} must be {rule.text}, not {made.keywords[name]!r}")


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
