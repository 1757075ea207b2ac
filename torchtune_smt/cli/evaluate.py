"""``evaluate``: corpus scores of translations, and the significance of differences."""

from __future__ import annotations

import logging

from omegaconf import DictConfig, ListConfig

from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.setup import require_split
from torchtune_smt.cli.warn import warn
from torchtune_smt.data.suspicions import output_suspicions
from torchtune_smt.errors import InputError
from torchtune_smt.evaluation.significance import compare
from torchtune_smt.metrics.corpus import METRICS, corpus_scores
from torchtune_smt.textio import read_lines


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
    else:
        files = _paths(cfg.references)
        columns = [read_lines(path) for path in files]
        for path, column in zip(files, columns, strict=True):
            if len(column) != len(columns[0]):
                raise InputError(
                    f"has {len(column)} lines, {files[0]} has {len(columns[0])}; every file of "
                    "references needs one line a sentence",
                    path=path,
                )
        references = [list(row) for row in zip(*columns, strict=True)]
    systems = {path: read_lines(path) for path in paths}
    for path, lines in systems.items():
        if len(lines) != len(references):
            raise InputError(
                f"has {len(lines)} lines, and there are references of {len(references)} "
                "sentences; both need one line a sentence",
                path=path,
            )
    for path, lines in systems.items():
        warn(
            output_suspicions(
                path,
                [line.split() for line in lines],
                [[reference.split() for reference in row] for row in references],
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


def _paths(files: str | ListConfig) -> list[str]:
    """Return the paths of a list of files; one may stand without a list."""
    paths = [files] if isinstance(files, str) else [str(path) for path in files]
    if not paths:
        raise InputError("a list of files is empty; name one file at least")
    return paths
