"""What is fuzzed: the `TARGETS` of every module ``fuzz_*.py`` in this folder."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# What became of an input: refused with an InputError, taken with the result that is right, or,
# where the input is whole but says something else, taken as it is.
Verdict = Literal["refused", "same", "taken"]
# Runs the case of a number. It returns a verdict, or raises InputError (which is a refusal),
# Different, or anything else, which is then a traceback that a user would see.
Check = Callable[[int], Verdict]


class Different(Exception):
    """An input was taken, and the result is not what it should be."""


@dataclass(frozen=True)
class Target:
    """One kind of input.

    open: prepares everything in an empty folder, and returns the check.
    cases: how many the tests run; `make fuzz` knows no end.
    """

    open: Callable[[Path], Check]
    cases: int = 200


def load_targets(modules: list[str]) -> dict[str, Target]:
    """Return the targets of some modules by their names."""
    found: dict[str, Target] = {}
    for name in modules:
        found |= importlib.import_module(name).TARGETS
    return found


def all_modules() -> list[str]:
    """Return the modules that have targets."""
    return sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))


def drawer(target: str, case: int) -> random.Random:
    """Return the random numbers of a case: the same ones wherever it is run."""
    return random.Random(f"{target} {case}")
