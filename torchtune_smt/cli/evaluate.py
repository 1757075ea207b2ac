"""``evaluate``: corpus scores of translations, and the significance of differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig

from torchtune_smt.cli.hydra_main import hydra_main, warn
from torchtune_smt.cli.objects import make_dataset
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import UnequalLinesError, iterate_lines, parallel_lines
from torchtune_smt.data.suspicions import output_suspicions
from torchtune_smt.evaluation import Evaluation
from torchtune_smt.metrics.corpus import METRICS


@hydra_main("evaluate")
def main(cfg: DictConfig) -> None:
    """Print the scores of each system, and tests against the first one."""
    systems = _systems(cfg.systems)
    paths = [path for runs in systems.values() for path in runs]
    for name in cfg.metrics:
        if name not in METRICS:
            raise InputError(f"metrics has {name!r}; choose of {', '.join(METRICS)}")
    if cfg.references is None and "data" not in cfg:
        raise InputError(
            "there is nothing to compare with: give references=[FILE,...], or data=NAME, whose "
            f"references of {cfg.split} are taken"
        )
    if cfg.references is None:
        corpus = make_dataset(cfg, cfg.split).require(cfg.split)
        references = [[" ".join(words) for words in row] for row in corpus.references]
        columns = _columns([], paths, [[row[0] for row in references]])
    else:
        files = _paths("references", cfg.references)
        columns = _columns(files, paths)
        references = [list(row) for row in zip(*columns[: len(files)], strict=True)]
    translations = dict(zip(paths, columns[-len(paths) :], strict=True))
    for path, lines in translations.items():
        warn(
            output_suspicions(
                path,
                [split_words(line) for line in lines],
                [[split_words(reference) for reference in row] for row in references],
                case=not cfg.lowercase,
                tokens=cfg.tokenize == "none",
            )
        )
    sampling = {"samples": cfg.samples, "seed": cfg.seed}
    try:
        evaluation = Evaluation(
            {name: [translations[path] for path in runs] for name, runs in systems.items()},
            references,
            cfg.metrics,
            tokenize=cfg.tokenize,
            lowercase=cfg.lowercase,
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None
    for name, scores in evaluation.scores(**sampling).items():
        print(name)
        for score in scores:
            print(f"  {score}")
    if len(systems) > 1:
        print(*evaluation.compare(test=cfg.test, **sampling), sep="\n")


def _columns(
    references: Sequence[str], systems: Sequence[str], given: Sequence[Sequence[str]] = ()
) -> list[list[str]]:
    """Return the lines of all files, behind columns that are given: all must have as many lines.

    They are read side by side, so that one that is far too long takes no memory.
    """
    files = [*references, *systems]
    try:
        rows = list(parallel_lines([*given, *map(iterate_lines, files)]))
    except UnequalLinesError as error:
        first, *_ = error.counts
        for path, count in zip(files, error.counts[len(given) :], strict=True):
            if count != first:
                raise InputError(
                    f"has {count} lines, {references[0]} has {first}; every file of references "
                    "needs one line a sentence"
                    if path in references
                    else f"has {count} lines, and there are references of {first} sentences; both "
                    "need one line a sentence",
                    path=path,
                ) from None
    return [[row[i] for row in rows] for i in range(len(given) + len(files))]


def _systems(given: str | ListConfig | DictConfig) -> dict[str, list[str]]:
    """Return the files of each system's runs; systems of a list are named like their files."""
    if not isinstance(given, DictConfig):
        systems = [(path, [path]) for path in _paths("systems", given)]
    else:
        systems = [(str(name), _paths(f"systems.{name!s}", runs)) for name, runs in given.items()]
    if not systems:
        raise InputError("systems={} names no system; name one at least")
    named = Counter(path for _, runs in systems for path in runs)
    if twice := [path for path in named if named[path] > 1]:
        raise InputError(f"systems names a file twice: {', '.join(twice)}")
    return dict(systems)


def _paths(option: str, files: Any) -> list[str]:
    """Return the paths of a list of files; one may stand without a list."""
    if isinstance(files, str):
        return [files]
    if not isinstance(files, ListConfig):
        raise InputError(f"{option} must be a file or a list of files, not {files}")
    if not files:
        raise InputError(f"{option} is an empty list of files; name one file at least")
    for path in files:
        if not isinstance(path, str | int | float):
            raise InputError(
                f"{option} has {path} in the place of a file; runs of a system are given with "
                "its name, as in systems={base:[a1,a2],new:[b1,b2]}"
            )
    return [str(path) for path in files]
