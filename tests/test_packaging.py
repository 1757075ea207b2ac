"""The command, and the wheel: it must work without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torchtune_smt.cli import COMMANDS, main
from torchtune_smt.resources import config_folder, example_folder


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    for name in COMMANDS:
        assert f"  {name} " in output


def test_no_command_and_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["tune"]) == 2
    assert "there is no command 'tune'" in capsys.readouterr().err


def test_resources_are_found_in_the_repository(repository: Path) -> None:
    assert config_folder() == repository / "conf"
    assert config_folder().is_dir()
    assert example_folder().is_dir()


def test_constraints_are_exact(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    for pin in pins:
        name, version = pin.split("==")
        assert name
        assert version
        assert "+" not in version


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", folder, repository], check=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_package_configurations_and_example(repository: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "torchtune_smt/py.typed" in names
    for folder, inside in [
        (repository / "conf", "torchtune_smt/conf"),
        (example_folder(), "torchtune_smt/example"),
    ]:
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert f"{inside}/{path.relative_to(folder)}" in names
    assert not any(name.startswith(("tests/", "outputs/", "scripts/")) for name in names)
    assert not any("__pycache__" in name for name in names)


@pytest.mark.slow
def test_wheel_runs_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, "--target", site, wheel], check=True, timeout=300)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*command: str | Path) -> str:
        result = subprocess.run(
            [sys.executable, *command],
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    where = "from torchtune_smt.resources import *; print(config_folder(), example_folder())"
    config, example = map(Path, run("-c", where).split())
    assert config == site / "torchtune_smt" / "conf"
    assert config.is_dir()
    assert example == site / "torchtune_smt" / "example"
    assert example.is_dir()
    script = site / "bin" / "torchtune-smt"
    assert "train" in run(script, "--help")
    assert "multi30k" in run(script, "get-data")
    assert list(empty.iterdir()) == []
