"""``train`` with optimizers of torch and of users: they run whole, or are refused at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commands import MODEL, SMALL, Run, run_command, write_few

from torchtune_smt.core.weights_io import read_weights

# As a user writes them: one class by the recipe, one of torch's with a change, and bad ones.
OWN = '''
"""Optimizers of a user."""

import torch


class ByTheBook(torch.optim.Optimizer):
    """Weights shrink by a share at each step, which is put off."""

    def __init__(self, params, lr=0.05, share=0.01):
        super().__init__(params, {"lr": lr, "share": share})

    @torch.no_grad()
    def step(self, closure=None):
        (weights,) = self.param_groups[0]["params"]
        state = self.state[weights]
        indices = weights.grad.indices()[0]
        self.catch_up(indices)
        weights.index_add_(0, indices, weights.grad.values(), alpha=-self.param_groups[0]["lr"])
        state["steps"] += 1

    @torch.no_grad()
    def catch_up(self, indices):
        (weights,) = self.param_groups[0]["params"]
        state = self.state[weights]
        if not state:
            state.update(steps=0, seen=torch.zeros(0, dtype=torch.int64))
        new = torch.full((weights.numel() - state["seen"].numel(),), state["steps"])
        state["seen"] = torch.cat([state["seen"], new])
        missed = state["steps"] - state["seen"][indices]
        weights[indices] *= (1 - self.param_groups[0]["share"]) ** missed.to(weights)
        state["seen"][indices] = state["steps"]

    def flush(self):
        self.catch_up(torch.arange(self.param_groups[0]["params"][0].numel()))


class Regularized(ByTheBook):
    def __init__(self, params, regularizer=None, **options):
        super().__init__(params, **options)


class HandsOn(torch.optim.SparseAdam):
    def __init__(self, params, **options):
        super().__init__(params, **options)


class OnlyCatchesUp(torch.optim.SGD):
    def catch_up(self, indices):
        pass
'''
ADAM = "optimizer._target_=torch.optim.SparseAdam"


@pytest.fixture(scope="module", autouse=True)
def own_module(run: Run) -> Iterator[None]:
    """Have the user's classes in the current folder of the commands, as YAML, too."""
    (run.place / "own_optimizers.py").write_text(OWN)
    write_few(run.place)
    group = run.place / "settings" / "optimizer"
    group.mkdir(parents=True)
    (group / "by_the_book.yaml").write_text("_target_: own_optimizers.ByTheBook\nshare: 0.02\n")
    # Commands in the process of the tests do not begin with the current folder in the path.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(run.place))
        yield


CONFIG = ["--config-dir", "settings"]
BATCH = [
    *["tuner.iterations=1", "tuner.solver.passes=1", "data.dev=[dev.de,dev.en]"],
    *["decoder.k=20", "decoder.pop_limit=10"],
]
RUNS = {
    "by_the_book": ["optimizer=by_the_book", "regularizer=none"],
    "average": ["optimizer=by_the_book", "tuner.result=average"],
    "torch_adagrad": ["optimizer._target_=torch.optim.Adagrad", "optimizer.lr=0.02"],
    "torch_adam": [ADAM, "+optimizer.betas=[0.8,0.99]", "tuner.result=average"],
    "hands_on": ["optimizer._target_=own_optimizers.HandsOn", "optimizer.lr=0.01", "loss=hinge"],
    "stochastic": ["tuner=stochastic", "optimizer=by_the_book", "loss=hinge"],
    "stochastic_adam": ["tuner=stochastic", ADAM, "regularizer=none"],
}


@pytest.mark.parametrize("name", RUNS)
def test_they_tune(run: Run, name: str) -> None:
    options = RUNS[name]
    small = BATCH if name.startswith("stochastic") else SMALL
    arguments = [*MODEL, *small, *options, "data.test=null", f"hydra.run.dir=own_{name}", *CONFIG]
    outcome = run_command("train", *arguments, folder=run.place).check()
    _, values = read_weights(run.place / f"own_{name}" / "weights.txt.gz")
    _, before = read_weights(run.weights)
    assert len(values) > 10
    assert values.tolist() != before.tolist()
    ignored = "takes no regularizer: L1(strength=0.1) has no effect" in outcome.out
    assert ignored == ("regularizer=none" not in options)
    assert "Warning" not in outcome.err


BAD = {
    "optimizer._target_=torch.optim.Adam": (
        "optimizer: Adam cannot take a step on a sparse gradient"
    ),
    "optimizer._target_=own_optimizers.OnlyCatchesUp": "optimizer: OnlyCatchesUp has no flush",
    "optimizer._target_=own_optimizers.Regularized": (
        "Regularized takes a regularizer and no `unregularized`"
    ),
    "optimizer._target_=builtins.dict": "=builtins.dict: its arguments are not known",
    "optimizer._target_=nowhere.Optimizer": "=nowhere.Optimizer: there is no such class",
    f"{ADAM} regularizer=l2": (
        "SparseAdam takes no regularizer, and regularizer=l2 would change nothing; leave it out"
    ),
    f"{ADAM} regularizer.strength=1": (
        "SparseAdam takes no regularizer, and regularizer.strength=1 would change nothing"
    ),
    f"{ADAM} optimizer.regularize_dense=true": (
        "SparseAdam takes no regularizer, and optimizer.regularize_dense=true would change nothing"
    ),
    f"{ADAM} optimizer.lr=-1": "optimizer: Invalid learning rate: -1",
    f"{ADAM} +optimizer.speed=3": "optimizer (SparseAdam) has no option speed, and",
    f"{ADAM} tuner=pro": "tuner=pro takes no optimizer",
    f"{ADAM} tuner=grouping": "set optimizer=fobos_oscar, or leave optimizer out",
}


@pytest.mark.parametrize("options", BAD)
def test_they_are_refused_before_the_start(run: Run, options: str) -> None:
    outcome = run_command(
        "train",
        *options.split(" "),
        "model.folder=own_never",
        "hydra.run.dir=own_bad",
        folder=run.place,
    )
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert BAD[options] in outcome.err
    assert outcome.err.count("\n") == 1
    # No option of AdaGrad's is listed, whose place they take.
    assert "initial_accumulator" not in outcome.err
    assert not (run.place / "own_never").exists()
    assert not (run.place / "own_bad").exists()
