"""What the scripts of all tables have in common: options, how they are said again, how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from runs import REPOSITORY

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.stopping import run_stoppable

CORPORA = {
    "multi30k": "Multi30k, German-English, captions of images: 29,000 training pairs; dev (1,014 "
    "sentences), devtest (the test set of 2017, 1,000) and test (2016, 1,000) with one reference.",
    "fisher": "Fisher and CALLHOME, Spanish-English, telephone speech: 18,872 training pairs of "
    "CALLHOME (calls within families, one reference); dev (3,967 sentences), devtest (3,949) and "
    "test (3,629) of Fisher (strangers on a given topic, four references). To tune on the bitext "
    "is to tune on another domain.",
    "callhome": "Fisher with test sets of both domains: the last 2,000 pairs of the bitext are "
    "devtest, and 1,000 before them are `dev_callhome` (CALLHOME, one reference); neither is in "
    "train (15,690 pairs). dev (1,000 sentences) and test (3,629) are Fisher's (four references).",
    "tanaka": "Tanaka, Japanese-English, short sentences with one reference: the last 1,000 of the "
    "50,000 pairs of the bitext are devtest, and train is the others; dev and test have 500 each.",
    "example": "The bundled example, German-English: 1,200 training pairs; dev and test (100 "
    "sentences each) with two references. It has no devtest, and dev stands for it.",
}


def add_corpora(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add which corpora there are rows of, and more of them that have to be asked for."""
    choices = ["multi30k", "fisher", *more]
    parser.add_argument("--corpora", nargs="+", choices=choices, metavar="CORPUS")
    parser.add_argument(
        "--small",
        action="store_true",
        help="the bundled example, and little of it: a few minutes",
    )


def chosen_corpora(given: argparse.Namespace) -> list[str]:
    """Return the corpora of `add_corpora`."""
    return ["example"] if given.small else given.corpora or ["multi30k", "fisher"]


def stand_ins(given: argparse.Namespace) -> dict[str, str]:
    """Return which sets stand for devtest and test."""
    return {"devtest": "dev" if given.small else "devtest", "test": "test"}


def add_rows(parser: argparse.ArgumentParser, rows: Sequence[str], more: str = "") -> None:
    """Add which rows of a table are done."""
    parser.add_argument("--rows", nargs="+", choices=rows, metavar="ROW", help=f"these alone{more}")


def add_common(parser: argparse.ArgumentParser, name: str, of_set: str = "") -> None:
    """Add what is done with rows, and where; a table is called after its paper."""
    parser.add_argument(
        "--forecast",
        action="store_true",
        help="print how many CPU hours the rows that are not done may take, and do nothing",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="OVERRIDE",
        help=f"overrides of train.py for all rows, such as decoder.pop_limit=30{of_set}",
    )
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / name)
    parser.add_argument("--publish", type=Path, metavar="DIR", help="write the tables there, too")


def check_seeds(parser: argparse.ArgumentParser, seeds: Sequence[int]) -> None:
    """End the script if there is a seed below 0, or one twice."""
    if min(seeds, default=0) < 0 or len(set(seeds)) < len(seeds):
        parser.error("--seeds must be 0 or more, and differ")


def check_counts(parser: argparse.ArgumentParser, given: argparse.Namespace, *names: str) -> None:
    """End the script if one of some options is given and below 1."""
    for name in names:
        value = getattr(given, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")


def said(given: argparse.Namespace, defaults: Mapping[str, Any]) -> list[str]:
    """Return options as they are given on a command line, but those that have their defaults."""
    words = []
    for name, default in defaults.items():
        value = getattr(given, name)
        if value == default:
            continue
        words.append(f"--{name.replace('_', '-')}")
        for one in value if isinstance(value, list) else [] if value is True else [value]:
            words.append(f"{one:g}" if isinstance(one, float) else str(one))
    return words


def ended(work: Callable[[], Sequence[str]]) -> int:
    """Do what a script does; return its exit code.

    A row's process is ended with this one, and its time is written down.

    Parameters
    ----------
    work : callable
        Returns the rows that have failed.
    """

    def command() -> int:
        try:
            failed = work()
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except (HydraException, OmegaConfBaseException) as error:
            # What follows on the first line is about Hydra.
            print(f"error: --set: {str(error).splitlines()[0]}", file=sys.stderr)
            return 1
        if failed:
            print(f"error: rows that failed: {'; '.join(failed)}", file=sys.stderr)
        return 1 if failed else 0

    return run_stoppable(Path(sys.argv[0]).name, command)
