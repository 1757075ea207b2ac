"""Sets of the data that are decoded anew for comparisons and analyses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from commands import Run, run_command

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines

EXAMPLE = example_folder()


@pytest.fixture(scope="module")
def short(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run like the first, as if it had been tuned with a limit below the first's sentences."""
    folder = tmp_path_factory.mktemp("short") / "run"
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
    record = folder / ".hydra" / "overrides.yaml"
    record.write_text(yaml.safe_dump([*yaml.safe_load(record.read_text()), "decoder.max_words=20"]))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "samples=5"],
        ["compare", "samples=5", "html=page.html"],
        ["evaluate", "samples=5"],
        ["analyse", "overlap", "of=[test,weights]"],
        ["analyse", "reordering"],
        ["analyse", "explain", "sentence=3"],
    ],
)
def test_a_sentence_that_is_too_long_is_named(
    run: Run, short: Path, tmp_path: Path, arguments: list[str]
) -> None:
    lines = read_lines(EXAMPLE / "test.de")[:4]
    # Empty lines are left out, and counted.
    source = [lines[0], "", lines[1], "a " * 21, "a " * 20]
    (tmp_path / "new.de").write_text("".join(f"{line}\n" for line in source))
    (tmp_path / "new.en").write_text("x\n" * len(source))
    files = [f"data.test=[{tmp_path / 'new.de'},{tmp_path / 'new.en'}]", "data.empty=skip"]
    command, *options = arguments
    systems = [short, *[run.folder] * (options[0] in ("reordering", "explain"))]
    analysis = options[: command == "analyse"]
    given = [*analysis, *systems, "data=example", *files, *options[len(analysis) :]]
    outcome = run_command(command, *given, folder=run.place)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines()[-1] == (
        f"error: {tmp_path / 'new.de'}:4: has 21 words, and at most 20 are decoded with "
        f"{short / 'weights.txt.gz'}; split the sentence, or tune with decoder.max_words=21 or more"
    )


def test_only_sentences_that_are_decoded_may_not_be_too_long(
    run: Run, short: Path, tmp_path: Path
) -> None:
    lines = read_lines(EXAMPLE / "test.de")[:1]
    (tmp_path / "new.de").write_text(f"{lines[0]}\n{'a ' * 21}\n")
    (tmp_path / "new.en").write_text("x\nx\n")
    data = ["data=example", f"data.test=[{tmp_path / 'new.de'},{tmp_path / 'new.en'}]"]
    given = ["explain", short, run.folder, *data, "sentence=1"]
    run_command("analyse", *given, folder=run.place).check()
