"""What a command does not need is not imported: imports are most of the time of a short one."""

import ast
import json
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

# Runs commands in a process of their own, and prints after each which modules have been imported.
SCRIPT = """
import json, sys
from torchtune_smt.cli import main
for command in json.loads(sys.argv[1]):
    try:
        code = main(command)
    except SystemExit as error:
        code = error.code
    assert not code, command
    rooms = {name.partition(".")[0] for name in sys.modules}
    print("imported", *rooms, *{"scipy.optimize"} & {*sys.modules}, file=sys.stderr)
"""
HEAVY = {"torch", "tensorboard", "sacremoses", "thot", "PIL", "matplotlib"}
NUMBERS = {"numba", "numpy", "scipy"}
RARE = {"sympy", "triton", "scipy.optimize"}
HELP = ["train", "build-model", "translate", "rerank", "tune", "evaluate", "compare", "analyse"]
TUNE = "tune dev=list references=reference tuner=pro weights=tuned"
RERANK = "rerank weights=w input=list output=out"
TRANSLATE = """translate data.tokenize=false data.normalize=false model=files model.grammar=grammar
    model.language_model=lm.arpa weights=weights input=input output=out"""
TRAIN = """train decoder=kbest_files decoder.dev=list data.train=null data.dev=[input,reference]
    data.test=null tuner=mira tuner.iterations=1 hydra.run.dir=tuned"""
SCORES = "systems=[out] references=[out] samples=10"
# Commands of one process: what a later one does not import, the earlier ones do not, either.
PROCESSES: dict[str, list[tuple[str, set[str]]]] = {
    "help": [
        ("--help", HEAVY | NUMBERS | {"hydra"}),
        *((f"{command} --help", HEAVY | NUMBERS) for command in HELP),
    ],
    # torch's compiler, which its own optimizers import, brings sympy, and Triton where that is.
    "tune": [(f"{TUNE} folds=0 samples=10 texts=none", {*RARE, "tensorboard"})],
    "train": [(TRAIN, RARE)],
    "plot": [("plot run --output run.svg", {"torch", "tensorboard", "sacrebleu", "numba"})],
    "others": [
        (RERANK, HEAVY | {"sacrebleu"}),
        (TRANSLATE, HEAVY | {"sacrebleu"}),
        ("analyse overlap w weights", HEAVY),
        *((f"{command} {SCORES}", HEAVY) for command in ("evaluate", "compare")),
    ],
}
FILES = {
    "run/metrics.jsonl": '{"step": 0, "bleu/dev": 1.0}\n',
    "list": "0 ||| the dog ||| LM= -1 ||| -1\n0 ||| a dog ||| LM= -2 ||| -2\n",
    "w": "LM_0 -1\n",
    "grammar": "[X] ||| der hund ||| the dog ||| Count=1\n[X] ||| eine ||| a ||| Count=1\n",
    "weights": "LanguageModel 1\nWordPenalty -1\nCount 1\n",
    "input": "der hund\n",
    "reference": "the dog\n",
}


@pytest.mark.parametrize("name", PROCESSES)
def test_what_a_command_does_not_need_is_not_imported(name, repository, tmp_path):
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    text = [["the", "dog"], ["the", "cat"], ["a", "dog"]] * 5
    write_arpa(tmp_path / "lm.arpa", estimate(text, 2, DISCOUNT_FALLBACK))
    commands = json.dumps([command.split() for command, _ in PROCESSES[name]])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, commands],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("imported ")]
    for found, (command, never) in zip(lines, PROCESSES[name], strict=True):
        assert found and not never & {*found}, command
    if name == "others":
        assert (tmp_path / "out").read_text() == "the dog\n"


def test_only_what_needs_tensors_imports_torch(repository):
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


def test_the_house(repository):
    """No circle among files, no arrow from a lower room to a higher one; decoders are named by
    configurations alone.
    """
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
    for name, others in graph.items():
        hidden = {f"torchtune_smt.decoders.{one}" for one in ("kbest_files", "hiero")}
        assert name.startswith("torchtune_smt.decoders") or not hidden & others, name
    inside = {name for name in modules if name.count(".") > 1}
    for name in inside:
        for other in graph[name] & inside:
            here, there = (ROOMS.index(one.split(".")[1]) for one in (name, other))
            assert there <= here, f"{name} imports {other}"


def test_a_library_in_the_library(repository):
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


def test_everything_that_the_package_offers_is_there():
    for name in torchtune_smt.__all__:
        assert getattr(torchtune_smt, name) is not None
    with pytest.raises(AttributeError):
        _ = torchtune_smt.Nothing
