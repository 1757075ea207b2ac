"""Green et al. (2013) on domains of dev: parts, what they are tried on, the table; no tuning."""

from pathlib import Path

import green2013_domains
import pytest
import sacrebleu
from commands import example_source, example_target
from domains import FOLDER, read_split
from green2013_domains import Part


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def test_parts_of_dev(tmp_path):
    parts = green2013_domains.write_parts("example", tmp_path / "data")
    assert list(parts) == ["domain1", "sample1", "domain2", "sample2"]
    sides = example_source("dev"), example_target("dev", 0), example_target("dev", 1)
    whole = list(zip(*sides, strict=True))
    split = read_split(FOLDER / "example.txt")["dev"]
    for number in (1, 2):
        files = parts[f"domain{number}"]
        assert [file.suffixes for file in files] == [[".de"], [".en", ".0"], [".en", ".1"]]
        rows = list(zip(*map(lines_of, files), strict=True))
        assert rows == [whole[line - 1] for line in split[number - 1]]
        drawn = list(zip(*map(lines_of, parts[f"sample{number}"]), strict=True))
        places = [whole.index(row) for row in drawn]
        assert len(set(places)) == len(rows) and places == sorted(places)
        assert drawn != rows
    assert not set(lines_of(parts["sample1"][0])) & set(lines_of(parts["sample2"][0]))


def test_the_table_has_means_over_runs(tmp_path):
    references = ["a b c d e", "f g h i j", "k l m n o", "p q r s t"]
    outputs = {
        "all of dev": [["a b c d e", "f g h i x"], ["a b c d x", "f g h i j"]],
        "domain 1": [["a b c x x", "x g h i j"], ["a b c d e", "x x h i j"]],
    }
    folders: dict[str, list[Path]] = {}
    for system, runs in outputs.items():
        for seed, texts in enumerate(runs):
            folder = tmp_path / system / str(seed)
            folder.mkdir(parents=True)
            for name, half in (("devtest", texts), ("test", references[2:])):
                (folder / f"{name}.translations.txt").write_text("".join(f"{x}\n" for x in half))
            folders.setdefault(system, []).append(folder)
    parts = [Part([i, i + 2], [[references[i]], [references[i + 2]]]) for i in (0, 1)]
    sets = {"devtest": "devtest", "test": "test"}
    table = green2013_domains.table(folders, {}, parts, sets)
    assert list(table.head) == ["tuned on", "domain 1 (2)", "p", "domain 2 (2)", "p"]
    for row in table.rows:
        for number, cell in ((0, row[1]), (1, row[3])):
            scores = [
                sacrebleu.corpus_bleu(
                    [run[number], references[number + 2]],
                    [[references[number], references[number + 2]]],
                    tokenize="none",
                    force=True,
                ).score
                for run in outputs[str(row[0])]
            ]
            assert cell == pytest.approx(sum(scores) / len(scores))
    assert table.rows[0][2] == "baseline"
    assert 0 < float(str(table.rows[1][2])) <= 1
