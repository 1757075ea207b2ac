"""Runs of an earlier version, which lowercased text before it was tokenised."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from commands import Run, run_command, train

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.weights_io import Origin, Part
from torchtune_smt.data.dataset import Dataset

TEST = example_folder() / "test.de"
STEPS = ["data.normalize=false", "data.lowercase=true", "data.tokenize=true"]


@pytest.fixture(scope="module")
def earlier(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose weights are as if the earlier version had written them."""
    options = ["model.folder=ordered", "tuner.epochs=1", "data.dev=test", *STEPS]
    new = train(place, "ordered run", *options)
    folder = tmp_path_factory.mktemp("earlier") / "run"
    shutil.copytree(new.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
    text = gzip.decompress(new.weights.read_bytes()).decode()
    assert "# text: de-en tokenize lowercase\n" in text
    text = text.replace("tokenize lowercase", "lowercase tokenize")
    (folder / "weights.txt.gz").write_bytes(gzip.compress(text.encode()))
    return Run(place, str(folder), new.outcome)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("de-en", False),
        ("de-en lowercase", False),
        ("de-en lowercase split_compounds=de", False),
        ("de-en normalize tokenize lowercase", False),
        ("de-en lowercase normalize", True),
        ("de-en lowercase tokenize split_compounds=de", True),
    ],
)
def test_the_description_tells_the_order(text: str, first: bool) -> None:
    assert Origin.of_model(Part("a"), Part("b"), Part("c"), text).lowercased_first is first
    assert not Origin.of_lists([text]).lowercased_first


def test_a_dataset_describes_its_steps_in_order() -> None:
    dataset = Dataset("x", "de", "en", lowercase=True, normalize=True, tokenize=True)
    assert dataset.description() == "de-en normalize tokenize lowercase"


def test_what_they_cannot_be_used_for(earlier: Run, run: Run) -> None:
    """They translate text that is lowercased already, and are compared with given references."""
    text = [f"weights={earlier.weights}", f"input={TEST}"]
    references = f"references=[{','.join(str(TEST.with_name(f'test.en.{i}')) for i in range(2))}]"
    both = [run.folder, earlier.folder, "samples=20"]
    overlap = f"systems={{a:[{earlier.folder}],b:[{run.folder}]}}"
    for arguments, said in (
        (["translate", *text], "lowercase tokenize, in an order"),
        (["compare", *both], "was made of text that was lowercased before it was tokenised"),
        (["compare", earlier.folder, "data=example", *STEPS], "text that was prepared as"),
        (["analyse", "analysis=overlap", overlap, "of=[test]"], "than the order of now"),
    ):
        outcome = run_command(*arguments, folder=earlier.place)
        assert (outcome.code, outcome.out) == (1, "")
        assert said in outcome.err.splitlines()[-1]
    for cured in (["translate", *text, "data.lowercase=false"], ["compare", *both, references]):
        assert run_command(*cured, folder=earlier.place).check().out
