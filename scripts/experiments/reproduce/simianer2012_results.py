"""What came out of the rows of Simianer et al. (2012): compared, and in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

import domains
import tables
from command_line import CORPORA
from domains import OUT
from published import merged
from simianer2012_rows import ROWS, SEEDS, SEVERAL, place
from tables import Section, tuning_set
from tuned import Corpus

from torchtune_smt.core.textio import atomic_writer

TITLE: Final = "Simianer et al. (2012): the results on News Commentary, with other data"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). Superscripts: algorithms "
    "whose translations of the same set, with the same features and seed, differ significantly (p "
    f"< {tables.SIGNIFICANT}, approximate randomisation, 10,000 trials), as in the paper; bold: "
    "after Holm's correction for all such pairs of the table, too. Active: "
    "weights that are not 0, dense ones among them. Algorithm 1 and 2 return the average over "
    "epochs, Algorithms 3 and 4 the last epoch's weights.",
    "A step is taken after each sentence, for all of its pairs in the wrong order, as the authors' "
    "dtrain does; 1p is as their slides have it, with a step after each pair.",
    "Not in the paper: 4d has a shard for each domain of the training data; 4s starts from the "
    "dense weights that Algorithm 1 has tuned on dev; 4+1 is Algorithm 1 on dev, from the weights "
    "of Algorithm 4 on; m is k-best MIRA; 4+m keeps the sparse part of 4 but for one factor, which "
    "it tunes on dev beside the dense weights; a and 3a are 1 and 3 with AdaGrad, logistic loss, "
    "L1, and the best epoch on dev, as train.py tunes by default. Times are those of a row alone, "
    "without that of the one it starts from.",
    "Out: the test set out of the domain. Domains are clusters of source sentences (k-means of "
    "tf-idf vectors); the last one was left out of all that models are built from and tuned on, of "
    "devtest and of test, and its sentences of dev, devtest and test are the other test set.",
    "Training data is decoded with leave-one-out grammars and language models of the other folds "
    "(`lm=folds`), in shards of about 1,000 sentences.",
)
MISSING: Final = "not run"
# What rows took that were done before.
CSV: Final = "table.csv"


@dataclass
class Result(tables.Result):
    """What came out of a row; `method` is the algorithm.

    Attributes
    ----------
    out : float
        BLEU out of the domain.
    differs, differs_out : dict of str to float
        p of the difference from other rows with the same features on test and out of the domain,
        by row.
    """

    out: float = 0.0
    differs: dict[str, float] = field(default_factory=dict)
    differs_out: dict[str, float] = field(default_factory=dict)


def results_of(folder: Path, name: str) -> dict[tuple[str, int], Result]:
    """Return the rows of a corpus that are done, by row and seed, in the order of the table."""
    found = {}
    for key in ROWS:
        for path in sorted((folder / name).glob(f"{key}-seed*")):
            result = Result.load(path)
            if result is not None:
                found[key, result.seed] = result
    return found


def compare_rows(corpus: Corpus, folder: Path, name: str) -> None:
    """Compare rows with the same features and seed, where that is still to do.

    Both have the p-value of their difference. What one of them alone has, or has otherwise, is from
    before the other was done again: it is computed anew, or dropped where translations are gone.
    """
    results = results_of(folder, name)
    for (row, seed), (other, other_seed) in combinations(results, 2):
        ours, theirs = results[row, seed], results[other, other_seed]
        if seed != other_seed or ours.features != theirs.features:
            continue
        places = [place(folder, name, key, seed) for key in (row, other)]
        for one, field_ in (("test", "differs"), (OUT, "differs_out")):
            differs: dict[str, float] = getattr(ours, field_)
            beside: dict[str, float] = getattr(theirs, field_)
            if other in differs and differs[other] == beside.get(row):
                continue
            files = [at / f"{one}.translations.txt" for at in places]
            if all(file.is_file() for file in files):
                differs[other] = beside[row] = corpus.p_value(one, *files)
            elif other in differs or row in beside:
                differs.pop(other, None)
                beside.pop(row, None)
            else:
                continue
            ours.save(places[0])
            theirs.save(places[1])


def write_tables(folder: Path, output: Path) -> None:
    """Write table.md and table.csv of all rows that are done, and say which are missing.

    Rows that the folder has from before, and that were not done again, stay.
    """
    lines = [f"# {TITLE}", ""]
    for note in NOTES:
        lines += [note, ""]
    sections = []
    for name, about in CORPORA.items():
        done = results_of(folder, name)
        found = merged(done, output / CSV, Result, name)
        results = in_order(found.results)
        for row, before in found.before.items():
            if row not in found.changed:
                _keep_comparisons(results[row], before, found.changed)
        if not results:
            continue
        sections.append(Section(name, about, list(results.values())))
        lines += [f"## {name}", "", f"{about} {_apart(name)}", ""]
        lines += tables.header(sections[-1].results)
        lines += [*_table(results), "", *_over_seeds(results), *_missing(results)]
        lines += _not_compared(results)
    if not sections:
        return
    with atomic_writer(output / "table.md") as file:
        file.write("\n".join(lines))
    tables.write_csv(output / CSV, sections)


def _keep_comparisons(result: Result, before: Result, changed: set[tuple[str, int]]) -> None:
    """Give a result the comparisons that are published of it, but those with what has changed."""
    for name in ("differs", "differs_out"):
        published: dict[str, float] = getattr(before, name)
        kept = {row: p for row, p in published.items() if (row, before.seed) not in changed}
        done = {} if result is before else getattr(result, name)
        setattr(result, name, kept | done)


def in_order(results: Mapping[tuple[str, int], Result]) -> dict[tuple[str, int], Result]:
    """Return results in the order of the table."""
    keys = list(ROWS)
    return dict(sorted(results.items(), key=lambda item: (keys.index(item[0][0]), item[0][1])))


def _over_seeds(results: Mapping[tuple[str, int], Result]) -> list[str]:
    """Return the means of rows that were done with several seeds, as lines of Markdown."""
    rows = {key: [r for (row, _), r in results.items() if row == key] for key in SEVERAL}
    several = {key: done for key, done in rows.items() if len(done) > 1}
    if not several:
        return []
    lines = [
        "Mean and standard deviation over seeds:",
        "",
        "| algorithm | features | seeds | BLEU devtest | BLEU test | BLEU out |",
        "|---|---|---|---|---|---|",
    ]
    for done in several.values():
        cells = [done[0].method, done[0].features, ", ".join(str(r.seed) for r in done)]
        for name in ("devtest", "test", "out"):
            cells.append(tables.spread_cell([getattr(result, name) for result in done]))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _missing(results: Mapping[tuple[str, int], Result]) -> list[str]:
    """Return which seeds of rows that are to have several were not run, as a paragraph."""
    missing = []
    for key in SEVERAL:
        left = [str(seed) for seed in SEEDS if (key, seed) not in results]
        if left:
            missing.append(f"{ROWS[key].algorithm}, {ROWS[key].features} ({', '.join(left)})")
    return [f"Seeds that were not run: {'; '.join(missing)}.", ""] if missing else []


def _not_compared(results: Mapping[tuple[str, int], Result]) -> list[str]:
    """Return which rows with the same features and seed were not compared, as a paragraph."""
    pairs = [
        f"{ROWS[key].algorithm} with {ROWS[other].algorithm} ({result.features}, seed {seed})"
        for (key, seed), result in results.items()
        for other, beside in ((o, r) for (o, s), r in results.items() if s == seed)
        if beside.features == result.features
        and other not in {key, *result.differs}
        # Each pair once, as it stands in the table.
        and list(ROWS).index(key) < list(ROWS).index(other)
    ]
    if not pairs:
        return []
    return [f"Not compared, as they were not done on one machine: {'; '.join(pairs)}.", ""]


def _apart(name: str) -> str:
    """Return how much of a corpus its last domain is."""
    split = domains.read_split(domains.FOLDER / f"{name}.txt")
    sizes = [f"{found[-1].size:,} of {one}" for one, found in split.items()]
    return f"Kept apart, as sentences of domain {len(split['train'])}: {', '.join(sizes)}."


def _table(results: Mapping[tuple[str, int], Result]) -> list[str]:
    lines = [
        "| algorithm | tuning set | features | seed | epochs | active | BLEU devtest | BLEU test "
        "| BLEU out | minutes an epoch | CPU minutes an epoch | paper: features | paper: test-nc |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    kept = [still_differs(results, name) for name in ("differs", "differs_out")]
    for key, row in ROWS.items():
        done = [result for (other, _), result in results.items() if other == key]
        paper = ["-", "-"]
        if row.published is not None:
            paper = [row.published.features, f"{row.published.test:.2f}"]
        for r in done:
            epochs = max(r.iterations, 1)
            cells = [r.method, tuning_set(r), r.features, str(r.seed), str(r.iterations)]
            cells += [
                f"{r.active:,}",
                f"{r.devtest:.2f}",
                f"{r.test:.2f}{_raised(r, r.differs, kept[0])}",
            ]
            cells += [f"{r.out:.2f}{_raised(r, r.differs_out, kept[1])}"]
            cells += [f"{r.minutes / epochs:.2f}", f"{r.cpu_minutes / epochs:.2f}"]
            lines.append(f"| {' | '.join([*cells, *paper])} |")
        if not done:
            cells = [row.algorithm, row.tuning_set, row.features, MISSING, *["-"] * 7]
            lines.append(f"| {' | '.join([*cells, *paper])} |")
    return lines


def still_differs(
    results: Mapping[tuple[str, int], Result], name: str
) -> set[tuple[str, str, int]]:
    """Return which rows, and seeds, differ after Holm's correction for all pairs of the table."""
    pairs = {
        (min(key, other), max(key, other), seed): p
        for (key, seed), result in results.items()
        for other, p in getattr(result, name).items()
    }
    corrected = zip(pairs, tables.holm(list(pairs.values())), strict=True)
    return {pair for pair, p in corrected if p < tables.SIGNIFICANT}


def _raised(result: Result, differs: Mapping[str, float], kept: set[tuple[str, str, int]]) -> str:
    """Return the algorithms that differ significantly, as a superscript; bold: corrected, too."""
    others = [key for key, p in differs.items() if p < tables.SIGNIFICANT]
    found = []
    for key in sorted(others, key=lambda key: ROWS[key].algorithm):
        a, b = sorted((key, result.row))
        name = ROWS[key].algorithm
        found.append(f"**{name}**" if (a, b, result.seed) in kept else name)
    return f"<sup>{','.join(found)}</sup>" if found else ""
