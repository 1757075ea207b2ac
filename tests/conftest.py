"""Fixtures and settings that all tests share."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import short_example
import torch
from commands import Run, train
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from torchtune_smt.grammar import FileGrammar, read_grammar
from torchtune_smt.lm import NgramModel
from torchtune_smt.optim import SparseOptimizer

# Compilation of a kernel may fall into any example, so there are no deadlines. In CI the
# examples are the same in every run: a failure there can be repeated.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
if os.environ.get("CI"):
    # Else examples have numbers and words of the modules that other tests have happened to load.
    vars(providers)["_get_local_constants"] = lambda: providers._local_constants

# Without a GPU its kernels are interpreted; Triton looks when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_finish() -> None:
    """Spare the collector what all tests share: it would look at it hundreds of times."""
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY


@pytest.fixture
def whole_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of a test's own, and the whole example: for what 300 sentences do not show."""
    monkeypatch.setenv("SHORT_EXAMPLE", str(short_example.WHOLE))
    return tmp_path


@pytest.fixture(scope="module")
def replayed_gradients() -> Iterator[None]:
    """Gradients are no function of weights: nobody reads what is out of date."""
    SparseOptimizer.delayed = True
    yield
    SparseOptimizer.delayed = False


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with corpora and the outputs of other tools beside the repository."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no corpora and oracles beside the repository: {folder} is missing")
    return folder


@pytest.fixture(scope="session")
def cdec_grammar(shared: Path) -> FileGrammar:
    """cdec's rules for the development set of Multi30k."""
    return read_grammar(shared / "oracles" / "cdec" / "grammar.dev.gz")


@pytest.fixture(scope="session")
def multi30k_model(shared: Path) -> NgramModel:
    """lmplz's language model of the training set of Multi30k."""
    return NgramModel.load(shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz", cache=False)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which commands run, with the small model that they share."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="session")
def run(place: Path) -> Run:
    """A short run on the bundled example."""
    return train(place, "first", "threads=2")
