"""A row's run that goes on from the shorter one that an option was chosen with."""

import json
from pathlib import Path

from commands import MODEL, run_command
from runs import Run, complete, drop_kept, lengthen, read_log, sweep
from stand_ins import FakeTrain

SHORT = True
SMALL = ["data.test=null", "decoder.k=10", "decoder.pop_limit=5", "tuner.sentences=20", "threads=1"]
BASE = ["data=example", *MODEL, *SMALL, "tuner.patience=null", "tuner=grouping", "features=rule_id"]
BASE += ["tuner.dev.iterations=2", "tuner.learning=online", "regularizer=oscar"]
BASE += ["regularizer.dimension=charts"]


class Train(FakeTrain):
    """Stands for a process of train.py: does its work here."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __call__(self, arguments, log):
        self.commands.append(list(arguments[2:]))
        self.code = run_command("train", *arguments[2:], folder=self.folder).check().code
        return self


def contents(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_is_the_run_that_was_done_from_the_start(place):
    start = Train(place)
    parts = [(*BASE, f"tuner.iterations={n}") for n in (1, 3)]
    option, values = "regularizer.lambda2", (1e-7, 1e-3)
    value = f"{option}={values[0]}"
    # Other tests have runs in the same place.
    whole = Run(place / "from the start", (*parts[1], value))
    assert complete(whole, start=start)
    folder = place / "lengthened"
    chosen, other = sweep(option, values, Run(folder / "sweep", parts[0]), True, start=start)
    (chosen.folder / "devtest.translations.txt").touch()
    longer = Run(folder, (*parts[1], value))
    before = json.loads((chosen.folder / "run.json").read_text())
    resuming = lengthen(longer, chosen)
    for one in (chosen, other):
        drop_kept(one)
        assert one.finished and read_log(one.folder).iterations == 1
        assert not contents(one.folder) & {"lists", "checkpoint.pt", "checkpoint.names"}
    assert longer.stopped and "devtest.translations.txt" not in contents(folder)
    # It has begun, so that nothing is to be taken over.
    assert lengthen(longer, chosen) == resuming == ("tuner.iterations=3", "tuner.keep_lists=false")
    assert complete(longer, resuming, start=start)
    assert start.commands[-1] == [f"resume={folder}", *resuming]
    for name in ("weights.txt.gz", "dev.translations.txt", "groups.tsv.gz"):
        assert (folder / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert read_log(folder) == read_log(whole.folder)
    assert read_log(folder).iterations == 3
    assert contents(folder) - {"sweep"} == contents(whole.folder)
    record = json.loads((folder / "run.json").read_text())
    assert record["overrides"] == list(longer.overrides)
    assert record["parts"][0] == before["parts"][0]
    assert len(record["parts"]) == 2
