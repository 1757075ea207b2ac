"""``evaluate``: corpus scores of translations, and the significance of differences."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from omegaconf import DictConfig, ListConfig

from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.setup import require_split
from torchtune_smt.cli.warn import warn
from torchtune_smt.data.suspicions import output_suspicions
from torchtune_smt.errors import InputError
from torchtune_smt.evaluation.significance import compare
from torchtune_smt.metrics.corpus import METRICS, corpus_scores
from torchtune_smt.text import split_words
from torchtune_smt.textio import UnequalLinesError, iterate_lines, parallel_lines


@hydra_main("evaluate")
def main(cfg: DictConfig) -> None:
    """Print the scores of each system, and tests against the first one."""
    # It tells of each step of the tests otherwise.
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    paths = _paths(cfg.systems)
    if len(set(paths)) < len(paths):
        raise InputError(f"systems names a file twice: {', '.join(paths)}")
    for name in cfg.metrics:
        if name not in METRICS:
            raise InputError(f"metrics has {name!r}; choose of {', '.join(METRICS)}")
    if cfg.references is None:
        corpus = require_split(cfg.data, cfg.split)
        references = [[" ".join(words) for words in row] for row in corpus.references]
        columns = _columns([], paths, [[row[0] for row in references]])
    else:
        files = _paths(cfg.references)
        columns = _columns(files, paths)
        references = [list(row) for row in zip(*columns[: len(files)], strict=True)]
    systems = dict(zip(paths, columns[-len(paths) :], strict=True))
    for path, lines in systems.items():
        warn(
            output_suspicions(
                path,
                [split_words(line) for line in lines],
                [[split_words(reference) for reference in row] for row in references],
                case=not cfg.lowercase,
                tokens=cfg.tokenize == "none",
            )
        )
    metrics = list(cfg.metrics)
    settings = {"tokenize": cfg.tokenize, "lowercase": cfg.lowercase}
    try:
        for path, lines in systems.items():
            print(path)
            for score in corpus_scores(lines, references, metrics, **settings).values():
                print(f"  {score}")
        if len(systems) > 1:
            comparisons = compare(
                systems,
                references,
                test=cfg.test,
                metrics=metrics,
                samples=cfg.samples,
                seed=cfg.seed,
                **settings,
            )
            for comparison in comparisons:
                print(comparison)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None


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


def _paths(files: str | ListConfig) -> list[str]:
    """Return the paths of a list of files; one may stand without a list."""
    paths = [files] if isinstance(files, str) else [str(path) for path in files]
    if not paths:
        raise InputError("a list of files is empty; name one file at least")
    return paths
