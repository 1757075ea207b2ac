"""``--help``, and what is said of options that are misspelt or of a wrong kind."""

import re
import subprocess
import sys

import pytest
from commands import run_command

from torchtune_smt.cli import main
from torchtune_smt.cli.help import NEVER, help_text, read_sentences
from torchtune_smt.core.resources import config_folder

TUNERS = "auto, batch, expected, grouping, mert, mira, online, pro, stochastic"
FILES = sorted(p for p in config_folder().rglob("*.yaml") if p.parent.name != "experiment")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(config_folder())))
def test_every_option_has_its_sentence(path):
    said = read_sentences(path)
    assert said.file
    for name, sentence in said.options.items():
        own = name.split(".")
        if own[0] in ("defaults", "hydra") or own[-1] in ("_target_", "solver", "dev"):
            continue
        if own[0] == "values" or own[-1] == "folder":
            continue
        assert sentence, name


def test_what_a_command_uses():
    """Options that it would refuse are not shown, nor those of choices that are not made."""
    text = help_text("translate", "torchtune-smt translate")
    assert text.startswith("usage: torchtune-smt translate [OPTION=VALUE ...]\n")
    assert "  decoder.k=100\n      Length of the k-best lists.\n" in text
    assert not re.search(r"tuner\.|loss|optimizer|regularizer|init\.|overwrite|hydra\.", text)
    assert not [name for name in NEVER if re.search(rf"^  {re.escape(name)}=", text, re.M)]
    text = help_text("train", "train.py", ["tuner=pro"])
    assert "  tuner.solver.sigma=1.0\n      Of the Gaussian prior of all weights" in text
    assert "  tuner.epochs=" not in text
    text = help_text("build_model", "build-model")
    assert "data.train=" in text and not re.search(r"data\.(dev|test)=", text)
    assert max(map(len, text.splitlines())) <= 100


def test_choices_of_a_folder_of_ones_own(tmp_path):
    (tmp_path / "data").mkdir()
    mine = "# Mine.\ndefaults:\n  - example\n  - _self_\n\n# My name.\nname: mine\n"
    (tmp_path / "data" / "mine.yaml").write_text(mine)
    outcome = run_command("train", "--help", "data=mine", "--config-dir", tmp_path, folder=tmp_path)
    assert "data=mine\n  Mine.\n  data.name=mine\n      My name.\n" in outcome.check().out
    assert "of example, files, fisher, mine, multi30k" in outcome.out
    run_command("train", "--help", "data=none", folder=tmp_path).refused("there is no data=none")


OF_MINE = "data=files data.name=mine data.source_language=fr data.target_language=en"
MISSPELT = {
    "train tuner.epoch=3": "there is no option tuner.epoch; did you mean tuner.epochs?",
    "train tunner=pro": "there is no option tunner; did you mean tuner?",
    "train qqq=1": "there is no option qqq; --help shows all that there are",
    "train tuner=mirra": f"there is no tuner=mirra; choose of {TUNERS}; did you mean mira?",
    f"train {OF_MINE} data.folders=[texts]": "data.dev is missing; give it with data.dev=VALUE",
    "rerank formt=moses": "there is no option formt; did you mean format?",
}


@pytest.mark.parametrize("line", MISSPELT)
def test_misspelt_options(line, tmp_path):
    run_command(*line.split(), folder=tmp_path).refused(f"error: {MISSPELT[line]}")


def test_a_misspelt_command(capsys):
    assert main(["trian"]) == 2
    expected = "torchtune-smt: there is no command 'trian'; did you mean train?\n"
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize("script", ["train.py", "scripts/rerank.py"])
def test_a_forgotten_environment(script, repository):
    """Without the packages of the environment, one sentence says so."""
    command = [sys.executable, "-S", "-E", str(repository / script), "weights=a"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "is missing; is the environment active that the package is installed in" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"tuner: {\n", "is no YAML"),
        ("# \u00fc\ntuner: {}\n".encode("latin-1"), "is not valid UTF-8; convert it: iconv"),
    ],
    ids=["yaml", "utf-8"],
)
def test_a_damaged_file_of_ones_own(tmp_path, text, message):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    path = tmp_path / "mine" / "experiment" / "bad.yaml"
    path.write_bytes(text)
    arguments = ["--config-dir=mine", "experiment=bad"]
    run_command("train", *arguments, folder=tmp_path).refused("bad.yaml", message)
