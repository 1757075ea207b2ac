"""Is it the domain? Tunes on two domains of dev.

    python scripts/experiments/reproduce/green2013_domains.py

A system of green2013.py (`ROW`, own tables) is tuned on the two largest domains of dev, each by
itself, on as many sentences drawn from all of dev, and on all of it. BLEU in each domain of devtest
and test together says what weights of one domain are worth in the other. Domains are those of
domains.py. Runs that are done are not done again, and scripts/analyse.py takes their folders.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import domains
import green2013
import numpy as np
from command_line import add_corpora, check_seeds, chosen_corpora, ended, said, stand_ins
from domains import chosen, dataset_of, read_set, read_split, write_set
from green2013_rows import Options, corpus_overrides, row_overrides
from green2013_rows import place as place_of_row
from runs import LOG, REPOSITORY, Run, complete
from tuned import SIGNIFICANCE, Corpus

from torchtune_smt.core.textio import atomic_folder, atomic_writer, read_lines
from torchtune_smt.evaluation import Evaluation
from torchtune_smt.evaluation.tables import Cell, Table

ROW: Final = "dev/adagrad_pt_al_lo_tuned"
DENSE: Final = "dev/adagrad_dense_tuned"
# The two largest.
TUNED_ON: Final = (1, 2)
SETS: Final = ("devtest", "test")
SEEDS: Final = (1, 2, 3)
BASELINE: Final = "all of dev"
FILE: Final = "domains.md"
P: Final = (
    f"p: of the difference from {BASELINE}, and of domains from the sample of the same size, for "
    "these runs."
)


class Part(NamedTuple):
    """Sentences of devtest and test that belong to a domain.

    Attributes
    ----------
    places : list of int
        Where they stand among the sentences of both sets, one behind the other.
    references : list of list of str
    """

    places: list[int]
    references: list[list[str]]


def write_parts(name: str, folder: Path) -> dict[str, list[Path]]:
    """Write the parts of dev that are tuned on, where they are not there; return their files.

    They are domains, ``domain1``, and for each as many sentences of all, ``sample1``, drawn once;
    each sentence is in one sample at most.
    """
    dataset = dataset_of(name)
    languages = dataset.source_language, dataset.target_language
    keys = [f"{kind}{number}" for number in TUNED_ON for kind in ("domain", "sample")]
    if not folder.is_dir():
        corpus = read_set(dataset, "dev")
        place = {line: i for i, line in enumerate(corpus.lines)}
        split = read_split(domains.FOLDER / f"{name}.txt")["dev"]
        order = np.random.default_rng(1).permutation(len(place))
        with atomic_folder(folder) as beside:
            for number in TUNED_ON:
                own = [place[line] for line in split[number - 1].tolist()]
                # Like domains, samples have no sentence in common.
                drawn, order = order[: len(own)], order[len(own) :]
                for key, places in (("domain", own), ("sample", sorted(drawn.tolist()))):
                    write_set(beside, f"{key}{number}", chosen(corpus, places), languages)
    return {
        key: [folder / f"{key}.{languages[0]}", *sorted(folder.glob(f"{key}.{languages[1]}*"))]
        for key in keys
    }


def tested_parts(name: str, sets: Mapping[str, str]) -> list[Part]:
    """Return the sentences of each domain, in all sets together.

    Parameters
    ----------
    sets : mapping of str to str
        The sets of the data that stand for devtest and test.
    """
    dataset, split = dataset_of(name), read_split(domains.FOLDER / f"{name}.txt")
    parts: list[Part] = [Part([], []) for _ in split["dev"]]
    begin = 0
    for one in dict.fromkeys(sets[set_] for set_ in SETS):
        corpus = read_set(dataset, one)
        domain = {int(line): d for d, lines in enumerate(split[one]) for line in lines}
        for i, (line, references) in enumerate(zip(corpus.lines, corpus.references, strict=True)):
            part = parts[domain[line]]
            part.places.append(begin + i)
            part.references.append([" ".join(words) for words in references])
        begin += len(corpus.lines)
    return parts


def place(options: Options, name: str, part: str, seed: int) -> Path:
    """Return the folder of a run on a part of dev."""
    return options.folder / "own" / name / "domains" / part / f"seed{seed}"


def do_part(
    part: str, dev: Sequence[Path], corpus: Corpus, name: str, seed: int, given: Options
) -> bool:
    """Tune on a part of dev, or do what is left of it, and translate; return whether it is done."""
    run = Run(place(given, name, part, seed), row_overrides(name, ROW, seed, dev, given))
    if not complete(run):
        return False
    for one in SETS:
        corpus.score(one, run.overrides, run.folder)
    return True


def do_corpus(name: str, given: Options, sets: Mapping[str, str]) -> list[str]:
    """Do all runs of a corpus, and write the table; return those that have failed."""
    base = (*corpus_overrides(name, given), "decoder=phrase")
    corpus = Corpus(base, dict(sets), reuse_k=1)
    of_corpus = given.folder / "own" / name / "domains"
    parts = write_parts(name, of_corpus / "data")
    labels = {part: label(part, len(read_lines(files[0]))) for part, files in parts.items()}
    folders: dict[str, list[Path]] = {}
    failed = []

    def note(system: str, folder: Path, done: bool) -> None:
        folders.setdefault(system, []).append(folder)
        if not done:
            failed.append(f"{name}: {system}")
            print(f"  failed; see {folder / LOG}", flush=True)

    for seed in given.seeds:
        for key, system in ((DENSE, f"dense, {BASELINE}"), (ROW, BASELINE)):
            print(f"{name}: {system}, seed {seed}", flush=True)
            done = green2013.do_row(key, corpus, name, seed, given) is not None
            note(system, place_of_row(given, name, key, seed), done)
        for part, files in parts.items():
            print(f"{name}: {labels[part]}, seed {seed}", flush=True)
            done = do_part(part, files, corpus, name, seed, given)
            note(labels[part], place(given, name, part, seed), done)
    if not failed:
        beside = {labels[f"domain{n}"]: labels[f"sample{n}"] for n in TUNED_ON}
        text = table(folders, beside, tested_parts(name, sets), sets).markdown()
        seeds = ", ".join(map(str, given.seeds))
        with atomic_writer(of_corpus / FILE) as file:
            file.write(f"{name}: BLEU on devtest and test together; seed {seeds}. {P}\n\n{text}")
        print(f"\n{text}")
    return failed


def label(part: str, size: int) -> str:
    """Return what a part of dev is called in the table."""
    number = part.removeprefix("domain")
    what = "sample of dev" if number == part else f"domain {number}"
    return f"{what} ({size:,} sentences)"


def table(
    folders: Mapping[str, Sequence[Path]],
    beside: Mapping[str, str],
    parts: Sequence[Part],
    sets: Mapping[str, str],
) -> Table:
    """Return BLEU of each system in each domain, means over its runs.

    Parameters
    ----------
    folders : mapping of str to sequence of path
        The runs of each system.
    beside : mapping of str to str
        What systems are compared with; `BASELINE` where nothing is said. p is by approximate
        randomisation, for these runs.
    parts : sequence of Part
    sets : mapping of str to str
        As for `tested_parts`.
    """
    names = [f"{one}.translations.txt" for one in SETS]
    # One set that stands for both counts once.
    names = [names[i] for i, one in enumerate(SETS) if sets[one] not in [sets[o] for o in SETS[:i]]]
    lines = {
        system: [[text for one in names for text in read_lines(run / one)] for run in runs]
        for system, runs in folders.items()
    }
    head: list[str] = ["tuned on"]
    columns: list[dict[str, list[Cell]]] = []
    for number, part in enumerate(parts, 1):
        head += [f"domain {number} ({len(part.places)})", "p"]
        systems = {s: [[run[i] for i in part.places] for run in runs] for s, runs in lines.items()}
        evaluation = Evaluation(systems, part.references, lowercase=True)
        column: dict[str, list[Cell]] = {}
        for baseline in (BASELINE, *beside.values()):
            for one in evaluation.compare(baseline=baseline, test=SIGNIFICANCE):
                column.setdefault(BASELINE, [one.baseline_score, "baseline"])
                if beside.get(one.system, BASELINE) == baseline:
                    column[one.system] = [one.score, round(one.p_value, 4)]
        columns.append(column)
    rows: list[list[Cell]] = [
        [system, *(cell for column in columns for cell in column[system])] for system in folders
    ]
    return Table(head, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    add_corpora(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), metavar="SEED")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / "green2013")
    given = parser.parse_args()
    check_seeds(parser, given.seeds)
    options = Options(
        folder=given.folder.resolve(),
        command=" ".join(
            [
                "python scripts/experiments/reproduce/green2013_domains.py",
                *said(given, {"small": False, "corpora": None, "seeds": list(SEEDS)}),
            ]
        ),
        epochs=2 if given.small else None,
        seeds=tuple(given.seeds),
        extra=green2013.SMALL if given.small else (),
    )
    os.chdir(REPOSITORY)
    names = chosen_corpora(given)
    return ended(lambda: [f for name in names for f in do_corpus(name, options, stand_ins(given))])


if __name__ == "__main__":
    sys.exit(main())
