#!/usr/bin/env python
"""Which value of an option is best within dev, where no other set is looked at: within_dev.csv.

    python scripts/experiments/reproduce/within_dev.py [--small] [--systems CORPUS/ROW ...]
        [--option regularizer.strength] [--values VALUE ...] [--seed 1]
        [--output docs/results/better/within_dev.csv]

`--option min_count` is that of each template of a row that names its templates.
Cross-validation with rows of `better.py`: each fold of dev is translated with weights that were
tuned on the others. A line has the BLEU of all folds together. Runs that are done are not done
again.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import product
from pathlib import Path
from typing import Final

from better import ROWS, TANAKA, cut_off, overrides_of, write_tanaka
from command_line import ended
from domains import chosen, dataset_of, read_set, write_sets
from runs import REPOSITORY, TRANSLATIONS, Run, complete, said_path

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.metrics.corpus import corpus_bleu

FOLDS: Final = 5
SYSTEMS: Final = ("multi30k/hiero_de", "multi30k/phrase_de")
VALUES: Final = ("0.03", "0.1", "0.3", "1")
MIN_COUNT, TEMPLATES = "min_count", "features.templates="


def write_folds(name: str, folder: Path) -> list[list[list[str]]]:
    """Write dev with and without each of its folds; return each fold's references."""
    dataset = dataset_of(name)
    dev = read_set(dataset, "dev")
    references = []
    for fold in range(FOLDS):
        own = range(fold, len(dev.source), FOLDS)
        others = [i for i in range(len(dev.source)) if i % FOLDS != fold]
        if not (folder / f"fold{fold}").is_dir():
            sets = {"dev": chosen(dev, others), "test": chosen(dev, own)}
            write_sets(folder / f"fold{fold}", dataset, sets)
        references.append([[" ".join(words) for words in dev.references[i]] for i in own])
    return references


def held_out(system: str, value: str, given: argparse.Namespace) -> float:
    """Return the BLEU of dev, each fold of it with weights that were tuned on the others."""
    name, key = system.split("/")
    place = given.folder / name / "within_dev"
    references, lines = write_folds(name, place), list[str]()
    for fold in range(FOLDS):
        overrides = [o for o in overrides_of(name, ROWS[key], given) if o != "data.test=null"]
        for one in ("dev", "test"):
            files = list((place / f"fold{fold}").glob(f"{one}.*"))
            source = f".{dataset_of(name).source_language}"
            files.sort(key=lambda path: (path.suffix != source, path))
            overrides.append(f"data.{one}=[{','.join(said_path(file) for file in files)}]")
        if given.option == MIN_COUNT:
            overrides = [cut_off(o, value) if o.startswith(TEMPLATES) else o for o in overrides]
        else:
            overrides.append(f"{given.option}={value}")
        overrides.append(f"seed={given.seed}")
        run = Run(place / key / f"{given.option}-{value}" / f"fold{fold}", tuple(overrides))
        print(f"{system}: {given.option}={value}, fold {fold}", flush=True)
        if not complete(run):
            raise InputError("a run has failed; see its train.log", path=run.folder)
        lines += read_lines(run.folder / f"test{TRANSLATIONS}")
    return corpus_bleu(lines, [row for fold in references for row in fold], lowercase=True).score


def write(given: argparse.Namespace) -> list[str]:
    """Write the file; return the rows that have failed: none."""
    given.folder, given.output, given.set = given.folder.resolve(), given.output.resolve(), []
    os.chdir(REPOSITORY)
    systems = ["example/phrase_lex"] if given.small else given.systems
    if any(system.startswith(f"{TANAKA}/") for system in systems):
        write_tanaka(given.folder / TANAKA / "data")
    found = []
    for system, value in product(systems, given.values):
        name, key = system.split("/")
        bleu = held_out(system, value, given)
        print(f"  {bleu:.2f}", flush=True)
        found.append(f"{key},{name},{given.seed},{given.option},{value},{bleu:.2f}\n")
    with atomic_writer(given.output) as file:
        file.writelines(["row,corpus,seed,option,value,bleu\n", *found])
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description="Tries values of an option within dev.")
    parser.add_argument("--small", action="store_true", help="of the bundled example")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, metavar="CORPUS/ROW")
    parser.add_argument("--option", default="regularizer.strength")
    parser.add_argument("--values", nargs="+", default=VALUES, metavar="VALUE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / "better")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "outputs/better/within_dev.csv")
    return ended(lambda: write(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
