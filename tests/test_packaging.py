"""The command, and what the wheel holds; `make wheel` uses it without the repository."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from torchtune_smt.core.resources import example_folder


def test_what_is_imported_is_required(repository: Path) -> None:
    """What only the test extra brings is not there for others (scipy was so once)."""
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["ray"], *extras["gpu"]]
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


@pytest.mark.slow
def test_wheel_holds_package_configurations_and_example(repository: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", tmp_path, repository], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
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
