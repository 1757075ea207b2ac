"""Runs of an earlier version, which lowercased text before it was tokenised."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from commands import Outcome, Run, run_command, train

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


def refused(outcome: Outcome) -> str:
    assert (outcome.code, outcome.out) == (1, "")
    return outcome.err.splitlines()[-1]


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


def test_translating(earlier: Run) -> None:
    arguments = [f"weights={earlier.weights}", f"input={TEST}"]
    for more in ([], ["data.empty=skip"]):
        error = refused(run_command("translate", *arguments, *more, folder=earlier.place))
        assert "belongs to text that was prepared as de-en lowercase tokenize, in an order" in error
        assert "than de-en tokenize lowercase; tune anew, or translate text that is lower" in error
    cured = run_command("translate", *arguments, "data.lowercase=false", folder=earlier.place)
    assert cured.check().out


def test_comparing(earlier: Run, run: Run) -> None:
    def compare(*arguments: str | Path) -> Outcome:
        return run_command("compare", *arguments, "samples=20", folder=earlier.place)

    references = f"references=[{','.join(str(TEST.with_name(f'test.en.{i}')) for i in range(2))}]"
    for systems in ([earlier.folder], [run.folder, earlier.folder]):
        error = refused(compare(*systems))
        assert "was made of text that was lowercased before it was tokenised" in error
        assert "tune anew, or give references=[FILE,...]" in error
        assert compare(*systems, references).check().out
    # These data are prepared in the new order, and the weights cannot translate them.
    error = refused(compare(earlier.folder, "data=example", *STEPS))
    assert "belongs to text that was prepared as" in error
    error = refused(
        run_command(
            "analyse",
            "analysis=overlap",
            f"systems={{a:[{earlier.folder}],b:[{run.folder}]}}",
            "of=[test]",
            folder=earlier.place,
        )
    )
    assert "than the order of now; tune anew" in error
