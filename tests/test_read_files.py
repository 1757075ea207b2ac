"""A run is resumed with the text, lists and weights that it began with, or not at all."""

import gzip
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import content, run_command, train_until_saved
from small_lists import put

from torchtune_smt.decoders.base import Decoder
from torchtune_smt.runs.task import read_files

LISTS = """\
0 ||| a good day ||| LM=-1 TM=-2 ||| -3
0 ||| a day good ||| LM=-2 TM=-1 ||| -3
1 ||| thank you ||| LM=-1 TM=-1 ||| -2
1 ||| you thank ||| LM=-3 TM=-1 ||| -4
"""
SCORES = """\
0 ||| a good day ||| 0.9
0 ||| a day good ||| 0.2
1 ||| thank you ||| 0.8
1 ||| you thank ||| 0.1
"""
OF_LISTS = [
    *("data=files", "data.name=l", "data.source_language=de", "data.target_language=en"),
    *("data.train=null", "data.folders=[sets]", "data.dev=dev", "data.test=[test.de,test.en]"),
    *("decoder=kbest_files", "decoder.dev=[one.nbest,two.nbest.gz]", "decoder.test=test.nbest"),
    *("metric=external", "metric.path=scores", "sampler.threshold=0.1"),
    *("init=file", "init.file=start", "tuner=pro", "hydra.run.dir=run"),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A place with a run on stored lists that was stopped."""
    place = tmp_path_factory.mktemp("stopped")
    half = LISTS.index("\n1 |||") + 1
    put(place, {"one.nbest": LISTS[:half], "two.nbest.gz": LISTS[half:], "test.nbest": LISTS})
    put(place, {"scores": SCORES, "start": {"LM": 0.5, "TM": 0.1}})
    for name in ("sets/dev", "test"):
        put(place, {f"{name}.de": ["ein guter tag", "danke sehr"]})
        put(place, {f"{name}.en": ["a good day", "thank you"]})
    train_until_saved(place, *OF_LISTS)
    return place


@pytest.fixture
def place(stopped, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(stopped, tmp_path / "place"))


def refused(place, *arguments):
    """Check that the run is not resumed, and that nothing is written; return why."""
    # What was said is added to the log.
    before = content(place, "train.log")
    outcome = run_command("train", "resume=run", *arguments, folder=place)
    assert outcome.code == 1
    assert content(place, "train.log") == before
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("error: ").strip()


CHANGES = {
    "sets/dev.de": ("data.dev", "sehr", "schön"),
    "sets/dev.en": ("data.dev", "thank you", "thanks"),
    "test.de": ("data.test", "sehr", "schön"),
    "test.en": ("data.test", "thank you", "thanks"),
    "one.nbest": ("decoder.dev", "LM=-1", "LM=-5"),
    "two.nbest.gz": ("decoder.dev", "LM=-1", "LM=-5"),
    "test.nbest": ("decoder.test", "LM=-1", "LM=-5"),
    "scores": ("metric.path", "0.9", "0.7"),
}


def test_a_file_that_has_changed_is_named(place):
    for name, (option, old, new) in CHANGES.items():
        path = place / name
        whole, zipped = path.read_bytes(), name.endswith(".gz")
        text = (gzip.decompress(whole) if zipped else whole).decode()
        assert old in text
        put(place, {name: text.replace(old, new)})
        changed = f"{name}: is not as it was when the run began, and is one of the files of "
        assert refused(place).startswith(f"{changed}{option}; ")
        # Another setting is said first.
        other = refused(place, "data.test=[test.de,sets/dev.en]")
        assert "is of a run with data.test = ['test.de', 'test.en'], and now" in other
        path.write_bytes(whole)
    # The cure; whether it was touched does not matter, nor what is not read. The start may change:
    # the checkpoint has other weights by then.
    alike = Path(shutil.copytree(place, place.parent / "alike"))
    put(place, {"sets/test.de": "etwas anderes\n", "start": "LM 0.25\nTM 0.1\n"})
    for folder in (place, alike):
        run_command("train", "resume=run", "tuner.keep_lists=true", folder=folder).check()
    weights = ((folder / "run" / "weights.txt.gz").read_bytes() for folder in (place, alike))
    assert len({*weights}) == 1
    # Where a run is made longer, too.
    (place / "test.en").write_text("a fine day\nthank you\n")
    assert refused(place, "tuner.iterations=30").startswith("test.en: is not as it was")


def test_references_that_come_and_go(place):
    sets = place / "sets"
    (sets / "dev.en").rename(sets / "dev.en.0")
    # It is the same one.
    shutil.copytree(place, place.parent / "renamed")
    run_command("train", "resume=run", folder=place.parent / "renamed").check()
    shutil.copy(sets / "dev.en.0", sets / "dev.en.1")
    assert refused(place).startswith("sets/dev.en.1: is not as it was when the run began")
    shutil.rmtree(place / "run")
    train_until_saved(place, *OF_LISTS)
    (sets / "dev.en.1").unlink()
    assert refused(place).startswith("sets/dev.en.1: is not as it was when the run began")


def test_files_of_classes_of_ones_own(tmp_path, monkeypatch):
    """Whatever their options name, in lists and dicts, too; of ours it is known what is read.

    Of the bitext the model knows whether it has changed.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("dictionary", "names", "more", "mine", "dev", "train"):
        (tmp_path / name).write_text(name)
    ours = "torchtune_smt.losses.Hinge"
    settings = {
        "decoder": {"_target_": "dec.Decoder", "dictionary": "dictionary", "k": 5, "x": "y"},
        "loss": {"_target_": ours, "names": "names"},
        "features": {"templates": [{"_target_": "a.Own", "of": ["names", {"in": "more"}]}]},
        "callbacks": [{"_target_": "b.Own", "inner": {"_target_": ours, "path": "mine"}}],
        "title": "mine",
    }
    dataset = SimpleNamespace(split_compounds=None, files=lambda name: [Path(name)])
    parts = SimpleNamespace(dataset=dataset, decoder=Decoder, metric=None)
    found = read_files(parts, settings, ["dev", "train"])
    assert {option: list(files) for option, files in found.items()} == {
        "data.dev": ["dev"],
        "decoder.dictionary": ["dictionary"],
        "features.templates[0].of[0]": ["names"],
        "features.templates[0].of[1].in": ["more"],
    }
