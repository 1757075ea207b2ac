"""Sets of Green et al. (2013): what is drawn of dev, and what CALLHOME keeps."""

from pathlib import Path

import green2013
import green2013_results
import green2013_rows
from domains import dataset_of, read_set
from green2013_rows import ROWS

from torchtune_smt.data.bitext import Corpus


def options(folder: Path, *arguments: str) -> green2013_rows.Options:
    return green2013.as_options(green2013.parse(["--folder", str(folder), *arguments]))


def test_callhome_keeps_a_test_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(green2013_rows, "dataset_of", lambda name: dataset_of("example"))
    sizes = {"CALLHOME_TEST": 30, "CALLHOME_DEV": 20, "CALLHOME_GAP": 5, "SMALL_DEV_SENTENCES": 10}
    for name, size in sizes.items():
        monkeypatch.setattr(green2013_rows, name, size)
    monkeypatch.setattr(
        green2013_rows, "write_set", lambda at, one, corpus, _: found.update({one: corpus})
    )
    found: dict[str, Corpus] = {}
    green2013_rows.write_callhome(options(tmp_path))
    n = len(read_set(dataset_of("example"), "train").source)
    ends = [(c.lines[0], c.lines[-1]) for c in map(found.get, ("train", "dev_callhome", "devtest"))]
    assert ends == [(1, n - 60), (n - 54, n - 35), (n - 29, n)]
    assert (len(found["dev"].source), len(found["test"].source)) == (10, 100)
    # What is tuned on CALLHOME stops by CALLHOME, and is compared with what Fisher's dev tunes.
    rows = green2013_rows.runs_of("callhome", list(ROWS), ["dev", "train5k"], options(tmp_path))
    given = options(tmp_path)
    overrides = [green2013_rows.row_overrides("callhome", *row, [], given) for row in rows]
    assert ["data.dev=dev_callhome" in of for of in overrides] == [False] * 9 + [True] * 2
    assert green2013_results.baseline_of(rows[-1][0]) == "dev/mira_dense"
