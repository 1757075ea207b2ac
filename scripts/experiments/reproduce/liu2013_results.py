"""What came out of the rows of Liu et al. (2013): compared, in tables and in pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tables
from alike import Key, groups_of, labelled, shared
from command_line import CORPORA
from diagnosis import Diagnosis, plot_diagnosis
from liu2013_rows import BASELINE, ROWS
from published import merged_by, void
from tables import NOT_COMPARED, Section
from tuned import DEVTEST, SIGNIFICANCE, TEST, Corpus

from torchtune_smt.core.textio import atomic_writer

CSV: Final = "table.csv"
NOT_AGAIN: Final = "not computed again"
TITLE: Final = "Liu et al. (2013), Table 1"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). p: of the difference from "
    "PRO on dev with default features, by approximate randomisation (10,000 trials); "
    f"`{NOT_AGAIN}`: the translations are not there any more; `{NOT_COMPARED}`: the baseline "
    "has been done again since, elsewhere, or is not there with the same seed and options; a row "
    "with other options than PRO on dev names them. "
    "Active: weights that are not 0, dense ones among them; for OSCAR groups with such a weight. "
    "Reused: those of them that fire in the 1000 best translations of a sentence of test. "
    "Iterations: the one with the best BLEU on dev, whose weights were kept, and all. "
    "Minutes: of tuning, in wall-clock time, and on a processor: one thread unless the command has "
    "`--threads`.",
    "Training data is decoded with leave-one-out grammars and, as `language models` says, with "
    "those of the other folds (`folds`) or with the one that has seen it (`full`, as in the "
    "paper). Where not all of it was tuned on, the sample is drawn with the seed.",
)


@dataclass
class Result(tables.Result):
    """What came out of a row on a corpus.

    Attributes
    ----------
    diagnosis : Diagnosis
        What its run says of its groups.
    """

    diagnosis: Diagnosis = field(default_factory=dict)


def results_of(folder: Path) -> dict[Key, tuple[Result, Path]]:
    """Return what is done in a corpus's folder, and where it is, in the order of the table.

    Where a part of the training data had no folder of its own, it is found, too; one that has is
    taken first.
    """
    found = {}
    for key in ROWS:
        name = re.compile(rf"{key}(-\d+)?(-seed\d+)?")
        for path in sorted(folder.glob(f"{key}*"), key=lambda path: len(path.name)):
            result = Result.load(path) if name.fullmatch(path.name) else None
            if result is not None:
                found[Key.of(result)] = result, path
    return {key: found[key] for key in in_order(found)}


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Return keys in the order of the table: more training sentences come first."""
    rows = list(ROWS)
    known = [key for key in keys if key.row in ROWS]
    return sorted(known, key=lambda k: (rows.index(k.row), -k.training_sentences, k.seed))


def compare_rows(corpus: Corpus, folder: Path) -> None:
    """Compare rows with the baseline of the same seed and options, where that is still to do.

    Rows whose translations are gone have no p-value then, and neither have those without a
    baseline.
    """
    done = results_of(folder)
    baselines = {key.seed: found for key, found in done.items() if key.row == BASELINE}
    for key, (result, own) in done.items():
        if key.row == BASELINE:
            continue
        baseline, base = baselines.get(key.seed, (None, own))
        if baseline is None and result.p_test is not None:
            # Compared with one that is not there any more.
            continue
        if baseline is None or shared(baseline.overrides) != shared(result.overrides):
            if result.significance != NOT_COMPARED:
                void(result)
                result.save(own)
            continue
        scores = [baseline.devtest, baseline.test]
        if result.compared == scores and result.significance == SIGNIFICANCE:
            continue
        files = [(base / file, own / file) for file in (DEVTEST, TEST)]
        if all(path.is_file() for pair in files for path in pair):
            result.p_devtest = corpus.p_value("devtest", *files[0])
            result.p_test = corpus.p_value("test", *files[1])
            result.significance = SIGNIFICANCE
        else:
            result.p_devtest = result.p_test = None
            result.significance = NOT_AGAIN
        result.compared = scores
        result.save(own)


def write_tables(folder: Path, output: Path) -> None:
    """Write table.md, table.csv and the pictures of all rows that are done.

    Rows that the folder has from before, and that were not done again, stay. So does the picture of
    chance in groups where these do not say what it shows.
    """
    sections, everything, silent = [], [], []
    diagnoses: dict[str, list[Diagnosis]] = {}
    for name, about in CORPORA.items():
        done = {key: result for key, (result, _) in results_of(folder / name).items()}
        results = with_kept(done, output, name)
        if not results:
            continue
        groups = groups_of(results, BASELINE)
        more = [*tables.over_seeds(groups, BASELINE), *_missing(results)]
        sections.append(Section(name, about, [labelled(group)[0] for group in groups], more))
        everything.append(Section(name, about, results))
        sizes = tables.several_sizes(results)
        # Published before tables had it.
        silent += [
            f"{name}/{result.row}"
            for result in results
            if "tuner=grouping" in result.overrides
            and not result.diagnosis
            and Key.of(result) not in done
        ]
        diagnosis_of = {Key.of(result): result.diagnosis for result in results}
        for result in (result for group in groups for result in labelled(group)):
            if found := diagnosis_of[Key.of(result)]:
                said = f"{name}: {tables.name(result, sizes)}"
                diagnoses.setdefault(said, []).append(found)
    if not sections:
        return
    published = {key: row.published for key, row in ROWS.items() if row.published is not None}
    text = tables.markdown(
        TITLE, [*NOTES, tables.READING, *not_begun(sections)], sections, published, BASELINE
    )
    with atomic_writer(output / "table.md") as file:
        file.write(text)
    tables.write_csv(output / CSV, everything)
    tables.plot(output / "bleu-by-features.png", sections)
    picture = output / "chance-in-groups.png"
    if silent and picture.is_file():
        silent = list(dict.fromkeys(silent))
        print(f"{picture} stays as it was: {CSV} does not have what {', '.join(silent)} say there")
    elif diagnoses:
        plot_diagnosis(picture, diagnoses)


def with_kept(done: Mapping[Key, Result], output: Path, name: str) -> list[Result]:
    """Return results and the published ones that were not done again, in the order of the table.

    Those have no p-value any more where the baseline has other scores now, or other options.
    """
    found, _, changed = merged_by(Key.of, done, output / CSV, Result, name)
    baselines = {key.seed: key for key in found if key.row == BASELINE}
    for key in found.keys() - done.keys():
        beside = baselines.get(key.seed, key)
        alike = shared(found[beside].overrides) == shared(found[key].overrides)
        if key.row != BASELINE and (beside in changed or not alike):
            void(found[key])
    return [found[key] for key in in_order(found)]


def _missing(results: Sequence[Result]) -> list[str]:
    """Return which rows have not been run, and which of their seeds, as lines of Markdown."""
    known = {result.row for result in results}
    lines = []
    if left := [key for key in ROWS if key not in known]:
        lines += [f"Not run: {', '.join(f'`{key}`' for key in left)}.", ""]
    if seeds := [said for key in ROWS if key in known for said in _missing_seeds(key, results)]:
        lines += [f"Seeds that were not run: {'; '.join(seeds)}.", ""]
    return lines


def _missing_seeds(key: str, results: Sequence[Result]) -> Iterator[str]:
    """Yield which seeds a row does not have, but others, with the same sentences if it has any."""
    of_train = [result for result in results if "train" in ROWS[result.row].tuning_set]
    sizes = sorted({result.training_sentences for result in of_train}, reverse=True)
    on_train = "train" in ROWS[key].tuning_set
    for size in sizes if on_train else [0]:
        beside = [r for r in of_train if r.training_sentences == size] if on_train else results
        own = {result.seed for result in beside if result.row == key}
        left = sorted({result.seed for result in beside} - own)
        of_size = f", {size:,} training sentences" if on_train and len(sizes) > 1 else ""
        if left:
            yield f"`{key}`{of_size} ({', '.join(map(str, left))})"


def not_begun(sections: Sequence[Section]) -> list[str]:
    """Return which corpora have no row, as a note; the example is none of the experiments."""
    there = {section.corpus for section in sections}
    left = [] if there == {"example"} else sorted({"multi30k", "fisher"} - there)
    return [f"Nothing has been run of {name}." for name in left]
