"""When what a class says of its methods counts for a subclass, too.

A part may offer a shortcut: a loss the number of its compiled derivative, a regulariser strengths
for which the proximal steps have a closed form. Whoever takes the shortcut does not call the
method. A subclass inherits the offer, and may have another method: then the shortcut leads
elsewhere. So it counts only if no class that is more derived than the one that makes the offer
defines the method.
"""

from __future__ import annotations

import inspect
import math
from typing import Any


def declared(part: object, name: str, *methods: str) -> Any:
    """Return an attribute that says something of methods, or None where it does not count.

    Parameters
    ----------
    part : object
    name : str
        The attribute. It counts if the class that defines it is the one that defines each of
        the methods, or a subclass of that one.
    methods : str
        Names of the methods that it is about.
    """
    place = _place(part, name)
    if math.isinf(place) or any(_place(part, method) < place for method in methods):
        return None
    return getattr(part, name)


def behaves_as(part: object, kind: type, *methods: str) -> bool:
    """Say whether a part is of a class, or of a subclass that leaves some methods as they are."""
    parents = type(part).__mro__
    return kind in parents and all(_place(part, m) >= parents.index(kind) for m in methods)


def _place(part: object, name: str) -> float:
    """Return the place of the class that defines a name: 0 is the part's own; infinity: none."""
    if name in getattr(part, "__dict__", ()) and not _is_counted(part, name):
        return -1
    found = [
        (place, _unhooked(vars(parent)[name]))
        for place, parent in enumerate(type(part).__mro__)
        if name in vars(parent)
    ]
    if not found:
        return math.inf
    place, definition = found[0]
    if inspect.isfunction(definition):
        return max(place for place, other in found if other is definition)
    return place


def _is_counted(part: Any, name: str) -> bool:
    """Say whether a method is its class's, wrapped as torch's schedules do to count steps."""
    own = vars(part)[name]
    wrapped = getattr(own, "__wrapped__", None) if hasattr(own, "_wrapped_by_lr_sched") else None
    return wrapped is not None and wrapped is getattr(type(part), name, None)


def _unhooked(definition: Any) -> Any:
    """Return a method without the wrapper that torch puts into a class for a `step` it inherits."""
    return definition.__wrapped__ if getattr(definition, "hooked", False) else definition
