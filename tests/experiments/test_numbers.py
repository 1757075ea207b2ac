"""Every BLEU score in the pages of results is in data that are committed."""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# Figures that no table of a folder has, with what they are and the command that measured them.
NUMBERS = RESULTS / "numbers.csv"
SCORE = re.compile(r"(?<![\d.,/])\d\d\.\d\d(?![\d%])")
ALIKE = (
    "corpus",
    "row",
    "features",
    "training_sentences",
    "chosen",
    "set",
    "metric",
    "scale",
    "value",
)
PAGES = sorted(RESULTS.glob("*/README.md")) + sorted(RESULTS.glob("*/analyses.md"))


def lines_of(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def scores_of(folder: Path) -> set[str]:
    """Return the scores in a folder's tables, and their means over seeds."""
    found: set[float] = set()
    for path in folder.rglob("*.csv"):
        seeds = defaultdict(list)
        for line in lines_of(path):
            for name in ("dev", "devtest", "test", "out", "bleu"):
                if line.get(name):
                    key = *(line.get(column) for column in ALIKE), name
                    seeds[key].append(float(line[name]))
            found.update(json.loads(line.get("dev_by_epoch") or "[]"))
            for point in json.loads(line.get("points") or "[]"):
                found.update((point["dev"], point["devtest"]))
        for values in seeds.values():
            found.update((*values, np.mean(values)))
    return {f"{value:.2f}" for value in found}


def beside(page: str) -> set[str]:
    lines = [line["numbers"].split() for line in lines_of(NUMBERS) if line["page"] == page]
    return {number for numbers in lines for number in numbers}


def named(page: Path) -> str:
    return str(page.relative_to(RESULTS.parents[1]))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_scores_of_a_page_are_in_its_tables(page):
    known = scores_of(page.parent) | beside(named(page))
    lines = page.read_text("utf-8").splitlines()
    unknown = {f"{page}:{i}: {n}" for i, s in enumerate(lines, 1) for n in SCORE.findall(s)}
    assert {said for said in unknown if said.rpartition(" ")[2] not in known} == set()


def test_scores_of_quality_are_listed():
    text = (RESULTS.parent / "benchmarks.md").read_text("utf-8").partition("## Quality")[2]
    assert set(SCORE.findall(text)) <= beside("docs/benchmarks.md")


def test_what_is_listed_is_still_said():
    for line in lines_of(NUMBERS):
        text = (RESULTS.parents[1] / line["page"]).read_text("utf-8")
        assert set(line["numbers"].split()) <= set(SCORE.findall(text)), line["what"]
