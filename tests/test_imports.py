"""What a command does not need is not imported: imports are most of the time of a short one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import torchtune_smt
from torchtune_smt.lm import DISCOUNT_FALLBACK, estimate, write_arpa

# Runs a command in a process of its own, and prints the top-level modules that it has imported.
SCRIPT = """
import sys
from torchtune_smt.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
print("imported", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""
HEAVY = {"torch", "tensorboard", "sacremoses", "thot", "PIL", "matplotlib"}


def imported(repository: Path, folder: Path, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1].split()
    assert last[0] == "imported"
    return set(last[1:])


@pytest.mark.parametrize(
    "command",
    ["train", "build-model", "translate", "rerank", "tune", "evaluate", "compare", "analyse"],
)
def test_help_needs_hydra_alone(command: str, repository: Path, tmp_path: Path) -> None:
    found = imported(repository, tmp_path, command, "--help")
    assert "hydra" in found
    assert not found & (HEAVY | {"numba", "numpy", "scipy"})


def test_the_list_of_commands_needs_nothing(repository: Path, tmp_path: Path) -> None:
    assert not imported(repository, tmp_path, "--help") & (HEAVY | {"numba", "numpy", "hydra"})


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_evaluate(repository: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "a").write_text("the dog\n")
    found = imported(repository, tmp_path, command, "systems=[a]", "references=[a]", "samples=10")
    assert not found & HEAVY


def test_plot(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "bleu/dev": 1.0}\n')
    found = imported(repository, tmp_path, "plot", "run", "--output", "run.svg")
    assert not found & {"torch", "tensorboard", "sacrebleu", "numba"}


def test_analyse(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("rule_id:a~b 1.0\n")
    (tmp_path / "b").write_text("rule_id:a~b 2.0\n")
    found = imported(repository, tmp_path, "analyse", "overlap", "a", "b")
    assert not found & HEAVY


def test_rerank(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text(
        "0 ||| the dog ||| LM= -1 ||| -1\n0 ||| a dog ||| LM= -2 ||| -2\n"
    )
    (tmp_path / "weights").write_text("LM_0 -1\n")
    found = imported(repository, tmp_path, "rerank", "weights=weights", "input=list", "output=out")
    assert not found & (HEAVY | {"sacrebleu"})
    assert (tmp_path / "out").read_text() == "a dog\n"


def test_translate(repository: Path, tmp_path: Path) -> None:
    text = [["the", "dog"], ["the", "cat"], ["a", "dog"]] * 5
    write_arpa(tmp_path / "lm.arpa", estimate(text, 2, DISCOUNT_FALLBACK))
    rules = ["[X] ||| der hund ||| the dog ||| Count=1", "[X] ||| eine ||| a ||| Count=1"]
    (tmp_path / "grammar").write_text("\n".join(rules) + "\n")
    (tmp_path / "weights").write_text("LanguageModel 1\nWordPenalty -1\nCount 1\n")
    (tmp_path / "input").write_text("der hund\n")
    found = imported(
        repository,
        tmp_path,
        "translate",
        "data.tokenize=false",
        "data.normalize=false",
        "model=files",
        "model.grammar=grammar",
        "model.language_model=lm.arpa",
        "weights=weights",
        "input=input",
        "output=out",
    )
    assert not found & (HEAVY | {"sacrebleu"})
    assert (tmp_path / "out").read_text() == "the dog\n"


def test_only_what_needs_tensors_imports_torch(repository: Path) -> None:
    """Lists can be read, scored, sampled and decoded without it."""
    rooms = ("core", "kbest", "samplers", "metrics", "lm", "grammar", "decoders", "data")
    tensors = {f"core/{name}.py" for name in ("scoring", "segments", "state", "weights")}
    tensors.add("kbest/tensors.py")
    package = repository / "torchtune_smt"
    paths = [path.relative_to(package) for room in rooms for path in (package / room).glob("*.py")]
    names = [".".join(path.with_suffix("").parts) for path in paths if str(path) not in tensors]
    lines = [f"import torchtune_smt.{name}" for name in sorted(names)]
    lines += ["import sys", "assert 'torch' not in sys.modules"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=repository, check=True)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def importers(repository: Path, module: str, *folders: str) -> set[str]:
    """The files of some folders that import a module, or something of it."""
    found = set()
    for path in (p for folder in folders for p in (repository / folder).rglob("*.py")):
        for node in ast.walk(parsed(path)):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if any(name == module or name.startswith(f"{module}.") for name in names):
                found.add(str(path.relative_to(repository)))
    return found


def test_nobody_but_the_commands_imports_the_command_line(repository: Path) -> None:
    found = importers(repository, "torchtune_smt.cli", "torchtune_smt", "scripts", "docs")
    commands = {f"scripts/{p.name}" for p in (repository / "scripts").glob("*.py")}
    commands.add("scripts/dev/wheel_check.py")  # runs them all
    assert {name for name in found if not name.startswith("torchtune_smt/cli/")} <= commands


@pytest.mark.parametrize("module", ["kbest_files", "hiero"])
def test_a_decoder_is_known_by_its_configuration_alone(repository: Path, module: str) -> None:
    found = importers(repository, f"torchtune_smt.decoders.{module}", "torchtune_smt")
    assert {name for name in found if not name.startswith("torchtune_smt/decoders/")} == set()


# From the ground up: none knows what is above it.
ROOMS = (
    *("core", "kbest", "samplers", "losses", "metrics", "regularizers", "optim", "features", "lm"),
    *("grammar", "data", "models", "decoders", "minimizer", "tuners", "parallel", "runs"),
    *("evaluation", "cli"),
)


def imports_of(node: ast.AST) -> Iterator[str]:
    """What a file imports, wherever it does, but for types alone."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING":
            continue
        if isinstance(inner, ast.ImportFrom) and inner.module:
            yield from (f"{inner.module}.{alias.name}" for alias in inner.names)
            yield inner.module
        elif isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        yield from imports_of(inner)


def test_the_house(repository: Path) -> None:
    """No circle among files, and no arrow from a lower room to a higher one."""
    names = {}
    for path in (repository / "torchtune_smt").rglob("*.py"):
        parts = path.relative_to(repository).with_suffix("").parts
        names[path] = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    modules = set(names.values())
    graph = {name: set(imports_of(parsed(path))) & modules - {name} for path, name in names.items()}
    # What is imported of a package is the file that has it.
    packages = {name for path, name in names.items() if path.name == "__init__.py"}
    graph = {name: {o for o in other if o not in packages} for name, other in graph.items()}
    # Raises an error that names the circle.
    TopologicalSorter(graph).prepare()
    inside = {name for name in modules if name.count(".") > 1}
    for name in inside:
        for other in graph[name] & inside:
            here, there = (ROOMS.index(one.split(".")[1]) for one in (name, other))
            assert there <= here, f"{name} imports {other}"


def test_a_library_in_the_library(repository: Path) -> None:
    """What any PyTorch program may import brings torch and numpy, and no more of weight."""
    script = """
import sys, torch
from torchtune_smt import lists, losses, optim, prox
weights = torch.zeros(2, requires_grad=True)
optimizer = optim.FOBOS([weights])
weights.sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.state_dict()
print(*sys.modules)
"""
    found = subprocess.check_output([sys.executable, "-c", script], cwd=repository, text=True)
    loaded = {name.partition(".")[0] for name in found.split()}
    assert {"torch", "numpy"} <= loaded
    assert not loaded & {"numba", "scipy", "hydra", "sacrebleu", "sympy", "triton"}
    # The compiler is hidden from optimizers by a decorator that is not public (`optim.sparse`).
    assert "torch._dynamo" not in found.split()


def test_everything_that_the_package_offers_is_there() -> None:
    for name in torchtune_smt.__all__:
        assert getattr(torchtune_smt, name) is not None
    with pytest.raises(AttributeError):
        _ = torchtune_smt.Nothing
