"""The command, and the wheel: it must work without the repository."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from torchtune_smt.cli import COMMANDS, main
from torchtune_smt.core.resources import config_folder, example_folder


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


def test_what_is_imported_is_required(repository: Path) -> None:
    """What only the test extra brings is not there for others (scipy was so once)."""
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["ray"]]
    names = {re.split(r"[<>=~!]", line)[0].lower() for line in required}
    names.add("llvmlite")  # a part of numba
    distributions = packages_distributions()
    imported: set[str] = set()
    for path in (repository / "torchtune_smt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    others = imported - sys.stdlib_module_names - {"torchtune_smt"}
    assert others > {"torch", "numpy", "hydra"}
    for module in others:
        brought_by = {name.lower() for name in distributions.get(module, [module])}
        assert brought_by & names, f"{module} is not required by pyproject.toml"
    # numba's linear algebra in compiled functions is scipy's, and is not imported by name.
    assert "scipy" in names


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
    assert {"torchtune_smt/py.typed", "torchtune_smt/evaluation/page.html.jinja"} <= names
    for folder, inside in [
        (repository / "conf", "torchtune_smt/conf"),
        (example_folder(), "torchtune_smt/example"),
    ]:
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert f"{inside}/{path.relative_to(folder)}" in names
    assert not any(name.startswith(("tests/", "outputs/", "scripts/")) for name in names)
    assert not any("__pycache__" in name for name in names)


@pytest.fixture(scope="module")
def site(repository: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed to."""
    folder = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, "--target", folder, wheel], check=True, timeout=300)
    return folder


def run_installed(site: Path, folder: Path, *command: str | Path) -> str:
    """Run Python in a folder with the installed package, and return what it prints."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_wheel_runs_outside_the_repository(site: Path, tmp_path: Path) -> None:
    where = "from torchtune_smt.core.resources import *; print(config_folder(), example_folder())"
    config, example = map(Path, run_installed(site, tmp_path, "-c", where).split())
    assert config == site / "torchtune_smt" / "conf"
    assert config.is_dir()
    assert example == site / "torchtune_smt" / "example"
    assert example.is_dir()
    script = site / "bin" / "torchtune-smt"
    assert "train" in run_installed(site, tmp_path, script, "--help")
    assert "multi30k" in run_installed(site, tmp_path, script, "get-data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_tunes_the_example_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    command = site / "bin" / "torchtune-smt"
    short = ["tuner.epochs=1", "decoder.k=20", "decoder.pop_limit=10"]
    output = run_installed(site, tmp_path, command, "train", *short)
    found = re.search(r"^test +([\d.]+) +([\d.]+) +\+", output, re.MULTILINE)
    assert found is not None, output
    assert (tmp_path / "outputs" / "models" / "example" / "model.json").is_file()
    (weights,) = (tmp_path / "outputs").glob("2*/*/weights.txt.gz")
    (tmp_path / "in").write_text("guten tag !\n")
    arguments = [f"weights={weights}", "input=in"]
    translation = run_installed(site, tmp_path, command, "translate", *arguments)
    assert translation.endswith("!\n")
    assert "guten" not in translation
