"""A class with some of its arguments: what makes an object once the others are known."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Self

from torchtune_smt.core.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """Makes objects of a class: of the arguments that are known (options), and others."""

    kind: Callable[..., Any]
    make: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: Callable[..., Any], **options: Any) -> Self:
        """Return what makes objects of a class with some arguments."""
        return cls(kind, partial(kind, **options), options)

    @cached_property
    def names(self) -> set[str]:
        """The names of the arguments of the class."""
        return argument_names(self.kind)

    def __call__(self, **offered: Callable[[], Any]) -> Any:
        """Return an object, whose arguments of these names get what the callables return."""
        return self.make(**{name: what() for name, what in offered.items() if name in self.names})


def argument_names(kind: Callable[..., Any]) -> set[str]:
    """Return the names of a class's arguments, with those that it hands on to its parents."""
    if not inspect.isclass(kind):
        return set(inspect.signature(kind).parameters)
    names: set[str] = set()
    for parent in kind.__mro__:
        if "__init__" in vars(parent):
            parameters = inspect.signature(vars(parent)["__init__"]).parameters.values()
            names.update(one.name for one in parameters if one.kind is not one.VAR_KEYWORD)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                break
    return names


def takes_anything(kind: Callable[..., Any]) -> bool:
    """Return whether a class takes arguments of any name: a user's with ``**options``.

    Those of this package hand them on to their parents.
    """
    parameters = inspect.signature(kind).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return False
    maker = getattr(kind, "__init__", kind)
    return not str(getattr(maker, "__module__", "")).startswith("torchtune_smt.")


def check_part(option: str, part: object, *methods: str) -> None:
    """Raise InputError if an object of a user's class lacks what it is needed for."""
    for method in methods:
        if not hasattr(part, method):
            raise InputError(
                f"{option}: {type(part).__name__} has no {method!r}; is it meant here?"
            )


@contextmanager
def named_errors(option: str, given: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Name the option in the error of an argument that is out of range, or of a wrong type.

    given: the arguments: Python does not say which one was of a wrong type.
    """
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        message = f"{option}: {' '.join(str(error).split(chr(10)))}"
        if isinstance(error, TypeError) and given:
            # Python names the parent that has the constructor.
            kind = str(given.get("_target_", "")).rpartition(".")[2]
            message = re.sub(r"\w+\.__init__\(\)", kind or "it", message)
            values = ", ".join(f"{k}={v}" for k, v in given.items() if k != "_target_")
            message += f"; is an option of the wrong type? ({values})"
        raise InputError(message) from None


def leaves(option: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options within an option whose value may be a group, and their values."""
    if not isinstance(value, dict):
        yield option, value
        return
    for name, inner in value.items():
        yield from leaves(f"{option}.{name}" if option else str(name), inner)
