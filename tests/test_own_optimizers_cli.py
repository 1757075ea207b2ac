"""``train`` with optimizers of torch and of users: they run whole, or are refused at once."""

import pytest
from commands import MODEL, SMALL, run_command, write_few

from torchtune_smt.core.weights_io import read_weights

# As a user writes them: one class alone, one of torch's with a change, and bad ones. What puts
# updates off is in docs/examples.
OWN = '''
"""Optimizers of a user."""

import torch


class ByTheBook(torch.optim.Optimizer):
    """Weights that are seen shrink by a share at each step."""

    def __init__(self, params, lr=0.05, share=0.01):
        super().__init__(params, {"lr": lr, "share": share})

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        (weights,) = group["params"]
        weights[weights.grad.indices()[0]] *= 1 - group["share"]
        weights.add_(weights.grad, alpha=-group["lr"])


class Regularized(ByTheBook):
    def __init__(self, params, regularizer=None, **options):
        super().__init__(params, **options)


'''
ADAM = "optimizer._target_=torch.optim.SparseAdam"


@pytest.fixture(scope="module", autouse=True)
def own_module(run):
    """Have the user's classes in the current folder of the commands, as YAML, too."""
    (run.place / "own_optimizers.py").write_text(OWN)
    write_few(run.place)
    group = run.place / "settings" / "optimizer"
    group.mkdir(parents=True, exist_ok=True)
    (group / "by_the_book.yaml").write_text("_target_: own_optimizers.ByTheBook\nshare: 0.02\n")
    # Commands in the process of the tests do not begin with the current folder in the path.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(run.place))
        yield


CONFIG = ["--config-dir", "settings"]
RUNS = {
    "by_the_book": ["optimizer=by_the_book", "regularizer=none"],
    "torch_adam": [ADAM, "+optimizer.betas=[0.8,0.99]", "tuner.result=average"],
}


@pytest.mark.parametrize("name", RUNS)
def test_they_tune(run, name):
    options = RUNS[name]
    arguments = [*MODEL, *SMALL, *options, "data.test=null", f"hydra.run.dir=own_{name}", *CONFIG]
    outcome = run_command("train", *arguments, folder=run.place).check()
    _, values = read_weights(run.place / f"own_{name}" / "weights.txt.gz")
    _, before = read_weights(run.weights)
    assert len(values) > 10
    assert values.tolist() != before.tolist()
    ignored = "takes no regularizer: L1(strength=0.1) has no effect" in outcome.out
    assert ignored == ("regularizer=none" not in options)
    assert "Warning" not in outcome.err


BAD = {
    "optimizer._target_=own_optimizers.Regularized": (
        "Regularized takes a regularizer and no `unregularized`"
    ),
    f"{ADAM} regularizer=l2": (
        "SparseAdam takes no regularizer, and regularizer=l2 would change nothing; leave it out"
    ),
    f"{ADAM} optimizer.lr=-1": "optimizer: Invalid learning rate: -1",
}


@pytest.mark.parametrize("options", BAD)
def test_they_are_refused_before_the_start(run, options):
    places = ["model.folder=own_never", "hydra.run.dir=own_bad"]
    outcome = run_command("train", *options.split(" "), *places, folder=run.place)
    assert outcome.code == 1
    assert outcome.err.startswith("error: ") and BAD[options] in outcome.err
    assert outcome.err.count("\n") == 1
    # No option of AdaGrad's is listed, whose place they take.
    assert "initial_accumulator" not in outcome.err
    assert not (run.place / "own_never").exists()
    assert not (run.place / "own_bad").exists()
