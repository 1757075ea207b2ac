"""An optimizer: gradient descent with clipped gradients, whose proximal steps are put off."""

import torch

from torchtune_smt.optim import lengthened
from torchtune_smt.regularizers import is_lazy, is_separable


class ClippedSGD(torch.optim.Optimizer):
    """w -= lr · g with each g in -clip..clip, then the regulariser's prox with step lr."""

    def __init__(self, params, lr=0.02, clip=1.0, regularizer=None, unregularized=0):
        if regularizer is not None and not (is_separable(regularizer) and is_lazy(regularizer)):
            name = type(regularizer).__name__
            raise ValueError(f"{name} is not separable and lazy: use regularizer=l1, or fobos")
        given = {"regularizer": regularizer, "unregularized": unregularized}
        super().__init__(params, {"lr": lr, "clip": clip, **given})

    @torch.no_grad()
    def step(self, closure=None):
        """Take a step along the gradient, of which only some coordinates are not 0."""
        (group,) = self.param_groups
        (weights,) = group["params"]
        indices, gradient = weights.grad.indices()[0], weights.grad.values()
        self.catch_up(indices)
        gradient = gradient.clamp(-group["clip"], group["clip"])
        weights.index_add_(0, indices, gradient, alpha=-group["lr"])
        self.state[weights]["steps"] += 1

    @torch.no_grad()
    def catch_up(self, indices):
        """Take the proximal steps that these weights have missed, all in one."""
        (group,) = self.param_groups
        (weights,) = group["params"]
        state = self.state[weights]
        if not state:
            state.update(steps=0, seen=weights.new_zeros(0, dtype=torch.int64))
        # There may be more features now. A new one has missed nothing.
        state["seen"] = lengthened(state["seen"], weights.numel(), state["steps"])
        missed = state["steps"] - state["seen"][indices]
        state["seen"][indices] = state["steps"]
        if group["regularizer"] is not None:
            old = weights[indices]
            new = group["regularizer"].prox(old, group["lr"] * missed.to(old))
            weights[indices] = torch.where(indices < group["unregularized"], old, new)

    def flush(self):
        """Take the proximal steps that any weight has missed."""
        (weights,) = self.param_groups[0]["params"]
        self.catch_up(torch.arange(weights.numel(), device=weights.device))
