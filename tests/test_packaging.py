"""What the package requires; `make wheel` runs all of it without the repository."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import torchtune_smt


def test_what_is_imported_is_required(repository):
    """What only the test extra brings is not there for others (scipy was so once)."""
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["ray"], *extras["gpu"]]
    names = {re.split(r"[<>=~!]", line)[0].lower() for line in required}
    names.add("llvmlite")  # a part of numba
    distributions = packages_distributions()
    imported = set()
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


def test_constraints_are_exact(repository):
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    for pin in pins:
        name, version = pin.split("==")
        assert name
        assert version
        assert "+" not in version


def test_each_public_name_is_there():
    assert {"KBestLists", "Run", "tune_lists"} < {*torchtune_smt.__all__}
    for name in torchtune_smt.__all__:
        assert getattr(torchtune_smt, name).__name__.endswith(name)
