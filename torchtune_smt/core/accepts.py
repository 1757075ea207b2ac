"""What a class says of itself: what its arguments may be, and what is true of its methods.

Ranges and choices are data on the class (`Checked.accepts`). One validator makes the checks and the
sentences, in Python and for options of the command line; tests of bad values come from there.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Number
from types import MappingProxyType
from typing import Any, ClassVar, Final

# Kernels take 64 bits with a sign.
INT64: Final = (1 << 63) - 1
_NAN: Final = float("nan")


@dataclass(frozen=True)
class Rule:
    """What an argument may be.

    text: what follows "must be".
    good, bad: values that fit, and that do not, those next to a bound among them: for tests.
    """

    text: str
    fits: Callable[[Any], bool]
    good: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError if the argument of some name has a value that does not fit."""
        if not self.fits(value):
            raise ValueError(f"{name} must be {self.text}, not {value!r}")

    def or_this(self, one: Any) -> Rule:
        """Return the rule that another value satisfies, too."""
        fits = self.fits
        return Rule(
            f"{self.text}, or {'null' if one is None else one}",
            lambda value: (type(value) is type(one) and value == one) or fits(value),
            (*self.good, one),
            tuple(value for value in self.bad if value is not one and value != one),
        )

    def or_null(self) -> Rule:
        """Return the rule that None satisfies, too."""
        return self.or_this(None)


class Checked:
    """A class whose arguments are checked; for dataclasses there is nothing else to do.

    Others call `check_arguments`. A subclass inherits what its parents accept (`accepts`).
    """

    accepts: ClassVar[Mapping[str, Rule]] = MappingProxyType({})

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self))


def accepting(**rules: Rule) -> Mapping[str, Rule]:
    """Return what a class accepts, for `Checked.accepts`."""
    return MappingProxyType(rules)


def rules_of(kind: object) -> dict[str, Rule]:
    """Return what a class accepts, its parents' rules among them."""
    rules: dict[str, Rule] = {}
    for parent in reversed(getattr(kind, "__mro__", ())):
        rules.update(vars(parent).get("accepts", {}))
    return rules


def check_arguments(taker: type | Mapping[str, Rule], given: Mapping[str, Any]) -> None:
    """Raise ValueError if a class, or the rules of a function, do not accept an argument."""
    for name, rule in (taker if isinstance(taker, Mapping) else rules_of(taker)).items():
        if name in given:
            rule.check(name, given[name])


def _number(value: Any) -> float:
    """Return a number of any type (of numpy's and tensors, too) as a float; NaN for no number."""
    if isinstance(value, float):
        return value
    # Truth values of numpy and torch are not those of Python; and no gradient would come of it.
    no_number = isinstance(value, str | bytes | bool) or getattr(value, "requires_grad", False)
    if no_number or f"{getattr(value, 'dtype', '')}".endswith("bool"):
        return _NAN
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return _NAN


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer; a float is none, nor is a truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


_NO_NUMBERS: Final = ("some", None, True, _NAN, [1.0])


def number(text: str, fits: Callable[[float], bool], *values: float) -> Rule:
    """Return the rule for numbers that fit; `values`, those next to bounds, are good or bad."""
    good = tuple(value for value in values if fits(value))
    bad = tuple(value for value in values if not fits(value))
    return Rule(text, lambda value: fits(_number(value)), good, (*bad, *_NO_NUMBERS))


def above(bound: float, most: float = math.inf, *, infinite: bool = False) -> Rule:
    """Return the rule for numbers above one bound and up to another, infinite ones if said."""
    return number(
        f"a number above {bound:g}" + ("" if most == math.inf else f" and up to {most:g}"),
        lambda value: bound < value <= most and (infinite or value != math.inf),
        *(bound, math.nextafter(bound, math.inf), math.inf),
        *(() if most == math.inf else (most, math.nextafter(most, math.inf))),
    )


def between(low: float, high: float) -> Rule:
    """Return the rule for numbers above one bound and below another."""
    return number(
        f"a number above {low:g} and below {high:g}",
        lambda value: low < value < high,
        *(low, math.nextafter(low, high), math.nextafter(high, low), high),
    )


def least(bound: float, *, infinite: bool = False) -> Rule:
    """Return the rule for numbers of at least a bound; infinite ones if that is said."""
    return number(
        f"a number, {bound:g} or more",
        lambda value: bound <= value and (infinite or value != math.inf),
        *(bound, math.nextafter(bound, -math.inf), math.inf),
    )


def integer(low: int, high: int = INT64) -> Rule:
    """Return the rule for integers from `low` to `high`; a float is none, nor a truth value."""
    return Rule(
        f"a whole number, {low} or more" + ("" if high == INT64 else f" (up to {high:,})"),
        lambda value: is_whole(value) and low <= value <= high,
        (low, high),
        (low - 1, high + 1, low + 0.5, float(low + 1), *_NO_NUMBERS),
    )


def one_of(*choices: str | int) -> Rule:
    """Return the rule for a few values: words, numbers, truth values."""
    shown = [str(one).lower() if isinstance(one, bool) else str(one) for one in choices]
    return Rule(
        " or ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])),
        lambda value: any(
            isinstance(value, bool) == isinstance(one, bool)
            and isinstance(value, str | Number)
            and value == one
            for one in choices
        ),
        choices,
        ("none of them", -7, [shown[0]], *(() if None in choices else (None,))),
    )


def argument_rules(kind: Any, *, scalars: bool = False) -> dict[str, Rule]:
    """Return what arguments of a class, or function, may be: as it says, or as their types do.

    scalars: leave out what only types say, apart from numbers and truth values.
    """
    rules = {}
    parents = reversed(kind.__mro__) if inspect.isclass(kind) else (kind,)
    for parent in parents:
        made = vars(parent).get("__init__") if inspect.isclass(parent) else parent
        for name, wanted in getattr(made, "__annotations__", {}).items():
            rule = _of_type(str(getattr(wanted, "__name__", wanted)), scalars)
            if rule is not None:
                rules[name] = rule
    return rules | rules_of(kind)


def _of_type(spelt: str, scalars: bool) -> Rule | None:
    """Return what an argument of a type may be; None where the type does not say."""
    try:
        parts = [ast.parse(spelt, mode="eval").body]
    except SyntaxError:
        return None
    while isinstance(parts[0], ast.BinOp):
        parts[:1] = [parts[0].left, parts[0].right]
    names = {ast.unparse(part).partition("[")[0] for part in parts}
    wanted = names - {"None"}
    rule = {
        frozenset({"bool"}): SWITCH,
        frozenset({"int"}): _WHOLE,
        frozenset({"float"}): _NUMBER,
        frozenset({"int", "float"}): _NUMBER,
    }.get(frozenset(wanted))
    if rule is None and not scalars:
        if wanted == {"str"}:
            rule = TEXT
        elif wanted == {"Literal"} and len(parts) == len(names):
            choices = spelt[spelt.index("[") + 1 : spelt.rindex("]")]
            rule = one_of(*ast.literal_eval(f"[{choices}]"))
        elif wanted and wanted <= {"tuple", "Sequence", "str"}:
            rule = TEXTS if "str" in wanted else LIST
    return rule.or_null() if rule is not None and "None" in names else rule


SWITCH: Final = one_of(True, False)
TEXT: Final = Rule(
    "text", lambda value: isinstance(value, str) and value != "", ("a",), ("", 3, None)
)
LIST: Final = Rule(
    "a list, as in [a,b]", lambda value: isinstance(value, Sequence) and not isinstance(value, str)
)
TEXTS: Final = Rule(
    "the name of a set, or a list of files", lambda value: TEXT.fits(value) or LIST.fits(value)
)
FINITE: Final = number("a finite number", math.isfinite, 0.0, math.inf, -math.inf)
_WHOLE: Final = Rule("a whole number", lambda value: is_whole(value) and -INT64 <= value <= INT64)
_NUMBER: Final = Rule("a number", lambda value: isinstance(value, float) or _WHOLE.fits(value))


# What a class says of its methods. A part may offer a shortcut: a loss the number of its compiled
# derivative, a regulariser strengths for which the proximal steps have a closed form. Whoever takes
# it does not call the method. A subclass inherits the offer, and may have another method: so it
# counts only if no class that is more derived than the one that makes it defines the method.


def declared(part: object, name: str, *methods: str) -> Any:
    """Return an attribute that says something of methods, or None where it does not count.

    It counts if the class that defines it is the one that defines each of the methods, or a
    subclass of that one.
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
