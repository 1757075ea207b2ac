"""Steps that never wait for a device: what they may not call, and when they say what is wrong."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from test_attach import BUILDS, made, same, take
from torch.utils._python_dispatch import TorchDispatchMode

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.optim import AROW, AdaGrad, adagrad
from torchtune_smt.regularizers import L1, L2, ElasticNet

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense,
    aten._coalesce,
    aten._unique2,
    aten.equal,
    aten.is_nonzero,
    aten.item,
    aten.masked_select,
    aten.nonzero,
    aten.unique_consecutive,
    aten.unique_dim,
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class NoWait(TorchDispatchMode):
    """Refuses all that waits for a device: numbers, and shapes that depend on numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        masks = [i for i in args[1] if i is not None] if func.overloadpacket is aten.index else []
        moved = func.overloadpacket is aten._to_copy and kwargs.get("device") is not None
        if func.overloadpacket in WAITS or moved or any(i.dtype == torch.bool for i in masks):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **kwargs)


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [name for name in BUILDS if name != "fobos averaged"])
def test_no_step_waits(name, device, attached):
    """A mean over steps, and OSCAR, take what the host computes."""
    (model, optimizer), (eager, plain) = made(name, wait=False), made(name, lazy=False)
    model.to(device)
    if attached:
        optimizer.attach(model)
    bags = torch.tensor([[0, 6], [3, 3], [6, 0]], device=device)
    for number in range(6):
        words = torch.tensor([number, 8 - number, number])
        words_there = words.to(device)
        with NoWait():
            if device != "cpu":
                torch.cuda.set_sync_debug_mode("error")
            try:
                if not attached:
                    optimizer.catch_up(words_there, model.words.weight)
                    optimizer.catch_up(bags, model.bags.weight)
                loss = (model(words_there, bags) - 1).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            finally:
                if device != "cpu":
                    torch.cuda.set_sync_debug_mode("default")
        loss = (eager(words, bags.cpu()) - 1).square().mean()
        plain.zero_grad()
        loss.backward()
        plain.step()
    optimizer.flush()
    same(model.cpu(), eager)


def test_what_waits_is_seen():
    model, optimizer = made("adagrad")
    with NoWait(), pytest.raises(AssertionError, match="waits"):
        take(model, optimizer, 1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_that_does_not_wait_says_later_what_was_wrong(device):
    def begin():
        model = torch.nn.Embedding(4, 2, sparse=True, dtype=torch.float64)
        model.weight.data.fill_(1.0)
        optimizer = AdaGrad(model.to(device).parameters(), 0.5, L1(0.1), wait=False)
        optimizer.attach(model)
        return model, optimizer

    def step(model, optimizer, row=0, scale=1.0, around=False):
        optimizer.zero_grad()
        forward = torch.nn.functional.embedding if around else None
        rows = torch.tensor([row], device=device)
        read = forward(rows, model.weight, sparse=True) if around else model(rows)
        (read * scale).sum().backward()
        optimizer.step()

    faults = [
        ({"scale": float("nan")}, DivergenceError, "finite"),
        ({"scale": 1e200}, DivergenceError, "squared"),
        ({"around": True}, RuntimeError, "attach"),
    ]
    for fault, kind, word in faults:
        model, optimizer = begin()
        step(model, optimizer)
        step(model, optimizer, row=1)
        step(model, optimizer, **fault)
        with pytest.raises(kind, match=rf"{word}.*wait=True"):
            model.eval()
        assert model.weight.isfinite().all()
        if word != "squared":  # That sum stays what it is.
            step(model, optimizer)
            model.eval()


def test_gpus_without_cuda_have_no_kernels(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert adagrad._kernels(SimpleNamespace(is_cuda=True)) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize(
    ("kind", "regularizer", "shape", "dtype"),
    [
        (AdaGrad, L1(0.1), (9,), torch.float64),
        (AdaGrad, ElasticNet(0.1, 0.3), (9, 3), torch.float32),
        (AROW, L2(0.3), (9, 2, 2), torch.float64),
        (AROW, None, (9, 2), torch.float32),
    ],
)
def test_kernels_of_a_gpu_in_their_interpreter(kind, regularizer, shape, dtype, monkeypatch):
    pytest.importorskip("triton")
    kernels = importlib.import_module("torchtune_smt.optim.row_tiles")
    monkeypatch.setattr("torchtune_smt.optim.adagrad._kernels", lambda parameter: kernels)
    draw = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=draw, dtype=torch.float64)
    own, twin = (torch.nn.Parameter(start.to(d, copy=True)) for d in (dtype, start.dtype))
    options = {"unregularized": 2, "rowwise": len(shape) == 3, "maximize": len(shape) == 3}
    lazy = kind([own], 0.3, regularizer, **options, wait=False)
    eager = kind([twin], 0.3, regularizer, **options, lazy=False)
    for number in range(4):
        rows = torch.randint(9, (4,), generator=draw)
        values = torch.randn((4, *shape[1:]), generator=draw, dtype=torch.float64)
        for parameter, optimizer in ((own, lazy), (twin, eager)):
            optimizer.catch_up(rows)
            given = values.to(parameter.dtype)
            parameter.grad = torch.sparse_coo_tensor(
                rows[None], given, shape, check_invariants=True
            )
            if number == 2:
                optimizer.flush()
                parameter.grad = parameter.grad.to_dense()
            optimizer.step()
    lazy.flush()
    exact = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(own.double(), twin, rtol=exact, atol=exact)
    lazy.catch_up(rows)
    own.grad = torch.full_like(own, float("nan"))
    lazy.step()
    with pytest.raises(DivergenceError, match="finite"):
        lazy.flush()
    own.grad = torch.sparse_coo_tensor([[-1, 9]], values[:2].to(dtype), shape)
    lazy.step()
    with pytest.raises(DivergenceError, match="rows"):
        lazy.flush()
    assert own.isfinite().all()
