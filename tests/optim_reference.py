"""The optimizers by the book: every coordinate at every step, on plain arrays."""

import numpy as np
import torch

from torchtune_smt.regularizers import L1, L2, ElasticNet, GroupLasso, NoRegularizer, Oscar


def parameter_of(values, device="cpu"):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64, device=device))


def set_gradient(parameter, entries):
    """Give a parameter a sparse gradient; `entries`: list of (index, value)."""
    indices = torch.tensor([[i for i, _ in entries]], dtype=torch.int64).reshape(1, -1)
    values = torch.tensor([v for _, v in entries], dtype=parameter.dtype)
    gradient = torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=True)
    parameter.grad = gradient.to(parameter.device)


def soft(w, amount):
    return np.sign(w) * np.maximum(np.abs(w) - amount, 0)


def shrunk(rows, amount):
    """Return rows made shorter by an amount (each by its own), and 0 where they are not longer."""
    length = np.sqrt((rows.reshape(len(rows), -1) ** 2).sum(1))
    part = np.maximum(1 - np.ravel(amount) / np.maximum(length, 1e-300), 0)
    return rows * column(part, rows)


def column(values, rows):
    """Return one number a row, in the shape that goes with rows."""
    return np.reshape(values, (-1, *[1] * (rows.ndim - 1)))


def prox(regularizer, w, step):
    """Return the prox of one step (a number, or one a coordinate), from its definition."""
    if regularizer is None or isinstance(regularizer, NoRegularizer):
        return w
    if isinstance(regularizer, L1):
        return soft(w, step * regularizer.strength)
    if isinstance(regularizer, L2):
        return w / (1 + step * regularizer.strength)
    if isinstance(regularizer, ElasticNet):
        return soft(w, step * regularizer.lambda1) / (1 + step * regularizer.lambda2)
    if isinstance(regularizer, GroupLasso):
        return shrunk(w, step * regularizer.strength) if len(w) else w
    if isinstance(regularizer, Oscar):
        strengths = step * regularizer.lambda1, step * regularizer.lambda2
        return oscar_prox(w, *strengths, regularizer.dimension)
    return regularizer.prox(torch.from_numpy(w), step).numpy()


def oscar_prox(a, lambda1, lambda2, dimension=None):
    """Return the prox of a sorted l1 norm, by scikit-learn's isotonic regression."""
    from sklearn.isotonic import isotonic_regression

    d = a.size if dimension is None else dimension
    order = np.argsort(-np.abs(a), kind="stable")
    z = np.abs(a)[order] - (lambda1 + lambda2 * (d - 1 - np.arange(a.size)))
    result = np.zeros(a.size)
    if a.size:
        result[order] = np.maximum(isotonic_regression(z, increasing=False), 0)
    return np.sign(a) * result


def squares(g, rowwise):
    """Return the squares of a gradient, or the mean ones of its rows."""
    return (g.reshape(len(g), -1) ** 2).mean(1) if rowwise else g**2


class Twin:
    """Weights, a gradient step and a regularisation of all coordinates."""

    def __init__(self, start, lr, regularizer=None, unregularized=0, schedule="constant", **other):
        self.w = np.array(start, float)
        self.lr, self.regularizer, self.unregularized = lr, regularizer, unregularized
        self.power = {"constant": 0, "inv_sqrt": 0.5, "1/t": 1}[schedule]
        self.t = 0
        self.other = other
        self.extra = {}  # arrays that grow with w: name -> value of new coordinates
        self.begin()

    def begin(self):
        pass

    def rate(self, t):
        return self.lr / t**self.power

    def grow(self, n):
        self.w = np.append(self.w, np.zeros(n))
        for name, new in self.extra.items():
            setattr(self, name, np.append(getattr(self, name), np.full(n, new)))

    def end_epoch(self):
        pass

    def step(self, entries):
        g = np.zeros(self.w.size)
        np.add.at(g, [i for i, _ in entries], [v for _, v in entries])
        self.t += 1
        self.update(g)


class EagerAdaGrad(Twin):
    """With `rowwise` G is one for each row; with a `root` that is the number itself, AROW."""

    def begin(self):
        self.root, self.rowwise = self.other.get("root", np.sqrt), self.other.get("rowwise")
        start = self.other.get("initial_accumulator", 0.0)
        self.G = np.full(len(self.w) if self.rowwise else self.w.shape, start)
        self.extra = {"G": start}
        self.due = []  # the rates of steps that are regularised at the end of the epoch

    def update(self, g):
        self.G += squares(g, self.rowwise)
        on = self.G > 0
        self.w[on] -= column(self.lr / self.root(self.G[on]), g) * g[on]
        self.due.append(self.lr)
        if self.other.get("regularize_each") != "epoch":
            self.end_epoch()

    def end_epoch(self):
        """Take the proximal steps that are due, of the weights that have had a gradient."""
        on = self.G > 0
        on[: self.unregularized] = False
        for lr in self.due:
            self.w[on] = prox(self.regularizer, self.w[on], lr / self.root(self.G[on]))
        self.due = []


class EagerAROW(Twin):
    """Green et al. (2013), Eqs. 10 and 11, with the whole matrix, of which the diagonal is kept."""

    def begin(self):
        self.variance = np.full(self.w.size, 1 / self.other.get("initial_precision", 1.0))
        self.extra = {"variance": 1 / self.other.get("initial_precision", 1.0)}

    def update(self, g):
        precision = np.linalg.inv(np.diag(self.variance)) + np.outer(g, g)
        self.variance = 1 / np.diag(precision)
        self.w = self.w - self.lr * self.variance * g
        n = self.unregularized
        self.w[n:] = prox(self.regularizer, self.w[n:], self.lr * self.variance[n:])


class Averaging(Twin):
    """The mean of the weights after each step, or at the end of each epoch."""

    def begin(self):
        self.total, self.count = np.zeros_like(self.w), 0
        self.extra = {"total": 0.0}

    def step(self, entries):
        super().step(entries)
        if self.other.get("average") == "step":
            self.add()

    def end_epoch(self):
        if self.other.get("average") == "epoch":
            self.add()

    def add(self):
        self.total += self.w
        self.count += 1

    def averaged(self):
        return self.total / self.count if self.count else self.w


class EagerFobos(Averaging):
    def update(self, g):
        self.w = self.w - self.rate(self.t) * g
        rest = self.w[self.unregularized :]
        self.w[self.unregularized :] = prox(self.regularizer, rest, self.rate(self.t + 1))


class EagerRDA(Twin):
    """Xiao (2010), Eq. 3, from the sums of all gradients."""

    def begin(self):
        self.start, self.total = self.w.copy(), np.zeros_like(self.w)
        self.extra = {"start": 0.0, "total": 0.0}

    def update(self, g):
        self.total += g
        step, n = self.lr * np.sqrt(self.t), self.unregularized
        mean = self.total / self.t
        self.w[:n] = self.start[:n] - step * mean[:n]
        self.w[n:] = prox(self.regularizer, -step * mean[n:], step)


class EagerSGD(Averaging):
    def update(self, g):
        self.w = self.w - self.lr * g


class EagerCumulativeL1(Twin):
    """Tsuruoka et al. (2009), Figure 2, with the penalty on all weights at each step."""

    def begin(self):
        self.u, self.q = 0.0, np.zeros(self.w.size)
        self.extra = {"q": 0.0}

    def update(self, g):
        self.u += self.rate(self.t) * self.regularizer.strength
        self.w = self.w - self.rate(self.t) * g
        for i in range(self.unregularized, self.w.size):
            z = self.w[i]
            if z > 0:
                self.w[i] = max(0, z - (self.u + self.q[i]))
            elif z < 0:
                self.w[i] = min(0, z + (self.u - self.q[i]))
            self.q[i] += self.w[i] - z


class EagerFTRL(Twin):
    """FTRL-Proximal as it is written in the paper, Algorithm 1."""

    def begin(self):
        self.beta, self.rowwise = self.other.get("beta", 1.0), self.other.get("rowwise")
        self.n = np.zeros(len(self.w) if self.rowwise else self.w.shape)
        # Algorithm 1 begins at 0; elsewhere it does with this.
        self.z = -self.beta / self.lr * self.w

    def update(self, g):
        new = self.n + squares(g, self.rowwise)
        self.z += g - column((np.sqrt(new) - np.sqrt(self.n)) / self.lr, g) * self.w
        self.n = new
        Q = (self.beta + np.sqrt(self.n)) / self.lr
        if self.rowwise:
            w = shrunk(-self.z, self.regularizer.strength) / column(Q, g)
        else:
            pulled = np.arange(self.w.size) >= self.unregularized
            lambda1, lambda2 = self.regularizer.elastic if self.regularizer else (0.0, 0.0)
            w = -soft(self.z, lambda1 * pulled) / (Q + lambda2 * pulled)
        self.w = np.where(column(self.n > 0, g), w, self.w)
