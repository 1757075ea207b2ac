"""What weights of a model of Moses's belong to: its tables, their type, and on resuming limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import run_command, train_until_saved
from test_phrase_cli import INI as WITHOUT_REORDERING
from test_phrase_cli import LM

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.weights_io import Part, read_origin, short
from torchtune_smt.models.files import MosesModel

TYPE = "hier-monotonicity-backward-fe-allff"
REORDERING = f"LexicalReordering name=LexicalReordering0 num-features=2 type={TYPE} path=reordering"
INI = WITHOUT_REORDERING.replace("Distortion\n", f"{REORDERING}\nDistortion\n").replace(
    "Distortion0=", "LexicalReordering0= 1 1\nDistortion0="
)
OPTIONS = ["data=files", "data.name=x", "data.source_language=de", "data.target_language=en"]
OPTIONS += ["decoder=phrase", "model=moses", "model.ini=moses.ini", "features=dense"]
TRAIN = [*OPTIONS, "init=file", "init.file=moses.ini", "data.dev=[dev.de,dev.en]"]
TRAIN += ["data.test=null", "tuner.epochs=2", "hydra.run.dir=run"]


@pytest.fixture
def moses(tmp_path: Path) -> Path:
    (tmp_path / "table").write_text("ein haus ||| a house ||| 0.5\nhaus ||| home ||| 0.5\n")
    for name, score in (("reordering", "0.9 0.1"), ("other", "0.5 0.1")):
        lines = [f"ein haus ||| a house ||| {score}\n", f"haus ||| home ||| {score}\n"]
        (tmp_path / name).write_text("".join(lines))
    (tmp_path / "lm.arpa").write_text(LM)
    (tmp_path / "moses.ini").write_text(INI)
    (tmp_path / "dev.de").write_text("ein haus\nhaus ein haus\n")
    (tmp_path / "dev.en").write_text("a house\nhome a house\n")
    return tmp_path


def part_of(folder: Path, ini: str = INI, reordering: str | None = None) -> Part:
    (folder / "moses.ini").write_text(ini)
    given = None if reordering is None else str(folder / reordering)
    source = MosesModel(str(folder / "moses.ini"), reordering_table=given)
    return source.open(pytest.fail).grammar_part


def test_the_reordering_model_belongs_to_it(moses: Path) -> None:
    own = part_of(moses)
    assert own.name == f"{moses / 'table'} with {moses / 'reordering'} as {TYPE}"
    assert part_of(moses) == own
    assert part_of(moses, reordering="other").digest != own.digest
    for kind in ("wbe-monotonicity-backward-fe", "hier-monotonicity-forward-fe"):
        assert part_of(moses, INI.replace(TYPE, kind)).digest != own.digest
    # Two names of one type.
    words, phrases, short_name = (
        part_of(moses, INI.replace(TYPE, kind)).digest
        for kind in (
            "wbe-monotonicity-backward-fe-allff",
            "phrase-monotonicity-backward-fe",
            "monotonicity-backward-fe",
        )
    )
    assert words == phrases == short_name
    (moses / "table").write_text("ein haus ||| a house ||| 0.25\nhaus ||| home ||| 0.5\n")
    assert part_of(moses).digest != own.digest


def test_without_a_reordering_model_it_is_the_table(moses: Path) -> None:
    lines = [line for line in INI.splitlines() if not line.startswith("LexicalReordering")]
    part = part_of(moses, "\n".join(lines) + "\n")
    assert part == Part(str(moses / "table"), short(file_checksum(moses / "table")))


def test_weights_of_another_reordering_model(moses: Path) -> None:
    run_command("train", *TRAIN, folder=moses).check()
    weights = moses / "run" / "weights.txt.gz"
    origin = read_origin(weights)
    assert origin is not None
    assert origin.parts["grammar"].name == f"table with reordering as {TYPE} (de-en)"
    translate = ["translate", *OPTIONS, f"weights={weights}", "input=dev.de"]
    run_command(*translate, folder=moses).check()
    outcome = run_command(*translate, "model.reordering_table=other", folder=moses)
    assert outcome.code == 1
    assert f"belongs to the grammar table with reordering as {TYPE} (de-en) [" in outcome.err
    assert f"and not to the grammar table with other as {TYPE} (de-en) [" in outcome.err
    (moses / "moses.ini").write_text(INI.replace("hier-", "wbe-"))
    outcome = run_command(*translate, folder=moses)
    assert outcome.code == 1
    assert "and not to the grammar table with reordering as wbe-monotonicity-" in outcome.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("path=reordering", "path=other", "is of a run with grammar = "),
        ("hier-", "wbe-", "is of a run with grammar = "),
        (
            "-limit]\n4",
            "-limit]\n5",
            "is of a run with distortion_limit of the model = 4, and now it is 5; resume",
        ),
        (
            "[feature]",
            "[stack]\n9\n[feature]",
            "is of a run with stack_size of the model = None, and now it is 9",
        ),
    ],
)
def test_a_model_that_has_changed_is_not_resumed(
    moses: Path, old: str, new: str, message: str
) -> None:
    train_until_saved(moses, *TRAIN)
    assert old in INI
    (moses / "moses.ini").write_text(INI.replace(old, new, 1))
    outcome = run_command("train", "resume=run", folder=moses)
    assert outcome.code == 1 and message in outcome.err
    (moses / "moses.ini").write_text(INI)
    run_command("train", "resume=run", folder=moses).check()


def test_a_limit_that_an_option_gives(moses: Path) -> None:
    """What moses.ini says of it has no effect."""
    train_until_saved(moses, *TRAIN, "decoder.distortion_limit=3")
    (moses / "moses.ini").write_text(INI.replace("-limit]\n4", "-limit]\n5"))
    run_command("train", "resume=run", folder=moses).check()
