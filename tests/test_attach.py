"""Nobody reads weights that are out of date: `attach`, and what raises without it."""

import copy
import io
import os
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtune_smt.core.errors import InputError
from torchtune_smt.optim import AROW, FOBOS, FTRL, RDA, SGD, AdaGrad, CumulativeL1
from torchtune_smt.regularizers import L1, L2, ElasticNet, GroupLasso

BUILDS = {
    "adagrad": lambda p, **o: AdaGrad(p, 0.3, ElasticNet(0.02, 0.1), **o),
    "adagrad by rows": lambda p, **o: AdaGrad(p, 0.3, GroupLasso(0.05), rowwise=True, **o),
    "arow": lambda p, **o: AROW(p, 0.3, L1(0.05), **o),
    "fobos": lambda p, **o: FOBOS(p, 0.1, ElasticNet(0.02, 0.1), schedule="inv_sqrt", **o),
    "fobos by rows": lambda p, **o: FOBOS(p, 0.1, GroupLasso(0.1), schedule="constant", **o),
    "fobos averaged": lambda p, **o: FOBOS(p, 0.1, L2(0.1), average="step", **o),
    "rda": lambda p, **o: RDA(p, 0.3, L1(0.02), **o),
    "ftrl": lambda p, **o: FTRL(p, 0.3, L1(0.1), **o),
    "cumulative": lambda p, **o: CumulativeL1(p, 0.1, L1(0.05), **o),
    "sgd": lambda p, **o: SGD(p, 0.1, **o),
}


class Model(nn.Module):
    """Words, bags of them, and a layer that is dense; the last is read by a function, perhaps."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 3, sparse=True, dtype=torch.float64)
        self.bags = nn.EmbeddingBag(7, 3, sparse=True, mode="sum", dtype=torch.float64)
        self.out = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, words, bags, *, around=False):
        if around:
            word = nn.functional.embedding(words, self.words.weight, sparse=True)
        else:
            word = self.words(words)
        return self.out(word + self.bags(bags)).squeeze(1)


def made(name, seed=0, **options):
    torch.manual_seed(seed)
    model = Model()
    return model, BUILDS[name](model.parameters(), **options)


def loss_of(model, seed, **options):
    draw = torch.Generator().manual_seed(seed)
    words, bags = torch.randint(9, (4,), generator=draw), torch.randint(7, (4, 2), generator=draw)
    return (model(words, bags, **options) - 1).square().mean()


def take(model, optimizer, seed, *, around=False, step=None):
    loss = loss_of(model, seed, around=around)
    optimizer.zero_grad()
    loss.backward()
    (step or optimizer.step)()


def same(first, second):
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-12)


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file)


STEPS = st.lists(
    st.sampled_from(
        """step step! step!! step!!! eval reload module rate grow copy pickle flush both
        read""".split()
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(BUILDS)),
    steps=STEPS,
    seed=st.integers(0, 99),
    wait=st.sampled_from([None, False]),
)
def test_a_program_gives_the_eager_methods_numbers(name, steps, seed, wait):
    lazy, optimizer = made(name, wait=wait)
    optimizer.attach(lazy)
    eager, plain = made(name, lazy=False)
    rates = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (optimizer, plain)]
    for number, what in enumerate(steps):
        if what.startswith("step"):
            for model, one in ((lazy, optimizer), (eager, plain)):
                take(model, one, 100 * seed + number)
        elif what == "eval":
            lazy.eval()
            same(lazy, eager)
            lazy.train()
        elif what == "read":
            words, bags = torch.tensor([number % 9]), torch.tensor([[number % 7]])
            torch.testing.assert_close(lazy(words, bags), eager(words, bags))
        elif what == "module":
            fresh = Model()
            fresh.words.weight.data = fresh.words.weight.new_zeros(len(lazy.words.weight), 3)
            fresh.load_state_dict(saved(lazy.state_dict()))
            same(fresh, eager)
        elif what == "rate":
            for rate in rates:
                rate.step()
        elif what == "grow":
            for model in (lazy, eager):
                weight = model.words.weight
                weight.data = torch.cat([weight.data, weight.data.new_zeros(1, 3)])
        elif what in ("copy", "pickle"):
            again = copy.deepcopy(lazy) if what == "copy" else pickle.loads(pickle.dumps(lazy))
            assert type(again) is Model and type(again.words) is nn.Embedding
            same(again, eager)
        elif what == "flush":
            optimizer.flush()
            same(lazy, eager)
        elif what in ("reload", "both"):
            if what == "both":
                lazy, optimizer = copy.deepcopy((lazy, optimizer))
            else:
                state, weights = saved(optimizer.state_dict()), saved(lazy.state_dict())
                size = len(lazy.words.weight)
                lazy, optimizer = made(name, seed=1, wait=wait)
                lazy.words.weight.data = lazy.words.weight.data.new_zeros(size, 3)
                lazy.load_state_dict(weights)
                optimizer.load_state_dict(state)
            optimizer.attach(lazy)
            rate = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            rate.load_state_dict(rates[0].state_dict())
            rates[0] = rate
    optimizer.flush()
    same(lazy, eager)
    if name == "fobos averaged":
        for a, b in zip(lazy.parameters(), eager.parameters(), strict=True):
            if a in optimizer.state:
                torch.testing.assert_close(optimizer.averaged(a), plain.averaged(b))


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(BUILDS)), seed=st.integers(0, 99), caught=st.booleans())
def test_without_it_a_step_gives_the_eager_methods_numbers_or_raises(name, seed, caught):
    lazy, optimizer = made(name)
    eager, plain = made(name, lazy=False)
    rates = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, plain)]
    if caught:
        optimizer.attach(lazy)
    for number in range(12):
        take(eager, plain, 100 * seed + number)
        try:
            take(lazy, optimizer, 100 * seed + number, around=True)
        except RuntimeError as error:
            assert "attach" in str(error) and optimizer._puts_off(optimizer.param_groups[0])
            with pytest.raises(RuntimeError, match="attach"):
                optimizer.step()
            # Nothing has been done: it can go on.
            optimizer.flush()
            take(lazy, optimizer, 100 * seed + number, around=True)
        for rate in rates:
            # A rate that changes hides nothing.
            rate.step()
    optimizer.flush()
    same(lazy, eager)


def test_weights_that_are_out_of_date_are_nobodys_to_change():
    def zero(weight):
        with torch.no_grad():
            weight[3] = 0

    def cut(weight, rows=9):
        weight.data = weight.data[:rows].clone()

    for change, good in ((zero, True), (cut, True), (partial(cut, rows=5), False)):
        for flushed in {False, good}:
            model, optimizer = made("adagrad")
            optimizer.attach(model)
            take(model, optimizer, 1)
            if flushed:
                model.eval()
            change(model.words.weight)
            if flushed:
                take(model, optimizer, 2)
                continue
            with pytest.raises((RuntimeError, ValueError), match=r"flush|shrunk"):
                take(model, optimizer, 2)
            assert optimizer.state[model.words.weight]["step"] == 1


@pytest.mark.filterwarnings("ignore:.*put off")
def test_states_that_do_not_belong_together():
    model, optimizer = made("fobos")
    for seed in range(3):
        with torch.no_grad():
            optimizer.catch_up(torch.arange(9), model.words.weight)
            optimizer.catch_up(torch.arange(7), model.bags.weight)
        take(model, optimizer, seed)
    early, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
    optimizer.flush()
    take(model, optimizer, 4)
    for weights, fits in ((early, True), (model.state_dict(), False)):
        other, resumed = made("fobos", seed=1)
        resumed.load_state_dict(state)
        other.load_state_dict(weights)
        if fits:
            resumed.flush()
        else:
            with pytest.raises(InputError, match="not those of then"):
                resumed.flush()


def test_a_tied_embedding_and_one_with_max_norm():
    model, optimizer = made("adagrad")
    twin, plain = made("adagrad", lazy=False)
    for both in (model, twin):
        both.again = nn.Embedding(9, 3, sparse=True, dtype=torch.float64)
        both.again.weight = both.words.weight
    optimizer.attach(model)
    for seed in range(6):
        for module, one in ((model, optimizer), (twin, plain)):
            one.zero_grad()
            module.again(torch.tensor([seed, 8 - seed])).square().sum().backward()
            one.step()
            take(module, one, seed)
    model.eval()
    same(model, twin)
    normed = nn.Embedding(9, 3, sparse=True, max_norm=1.0)
    with pytest.raises(ValueError, match="max_norm"):
        AdaGrad(normed.parameters(), 0.1, L1(0.1)).attach(normed)
    with pytest.raises(ValueError, match="no parameter"):
        optimizer.attach(normed)


def test_an_optimizer_that_was_made_anew():
    """As a cell of a notebook that runs twice: the second one takes the place of the first."""
    (model, first), (twin, one) = made("adagrad"), made("adagrad", lazy=False)
    first.attach(model)
    for seed in range(6):
        if seed == 3:
            second, one = (BUILDS["arow"](m.parameters(), lazy=m is model) for m in (model, twin))
            second.attach(model)
        take(model, first if seed < 3 else second, seed)
        take(twin, one, seed)
    model.eval()
    same(model, twin)


def test_closures_groups_and_rates_that_are_tensors():
    model, optimizer = made("adagrad")
    eager, plain = made("adagrad", lazy=False)
    for module, one in ((model, optimizer), (eager, plain)):
        module.more = nn.Embedding(4, 2, sparse=True, dtype=torch.float64)
        module.more.weight.data.fill_(0.5)
        one.add_param_group({"params": module.more.weight, "lr": torch.tensor(0.05)})
        if module is model:
            one.attach(model)
        for number in range(8):

            def closure(module=module, one=one, number=number):
                one.zero_grad()
                loss = module.more(torch.tensor([number % 3])).sum()
                loss.backward()
                return loss

            assert float(one.step(closure).detach()) < 1.1
            one.param_groups[1]["lr"].mul_(0.9)
    model.eval()
    same(model, eager)


def _one_of_two(rank, file, name):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    model, optimizer = made(name)
    optimizer.attach(model)
    shared = nn.parallel.DistributedDataParallel(model)
    for seed in range(8):
        take(shared, optimizer, 2 * seed + rank)
    optimizer.flush()
    torch.save([p.detach() for p in model.parameters()], f"{file}.{rank}")
    # The last that holds the group waits for its threads, and these for the interpreter's lock,
    # which only `destroy_process_group` lets go.
    del shared
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is without it")
def test_two_processes_give_what_one_does_with_both_batches(tmp_path):
    file = tmp_path / "meeting"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The other one is this process.
    other = torch.multiprocessing.spawn(_one_of_two, (str(file), "adagrad"), join=False)
    _one_of_two(1, str(file), "adagrad")
    other.join()
    model, optimizer = made("adagrad", lazy=False)
    for seed in range(8):
        optimizer.zero_grad()
        sum(loss_of(model, 2 * seed + rank) / 2 for rank in range(2)).backward()
        optimizer.step()
    for rank in range(2):
        for found, expected in zip(torch.load(f"{file}.{rank}"), model.parameters(), strict=True):
            np.testing.assert_allclose(found, expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BUILDS)
def test_weights_of_before_and_other_types(name):
    """The best weights are taken back; a module is converted; both are what they are eagerly."""
    (lazy, optimizer), (eager, plain) = made(name), made(name, lazy=False)
    optimizer.attach(lazy)
    for model, steps in ((lazy, optimizer), (eager, plain)):
        for seed in range(3):
            take(model, steps, seed)
        best = copy.deepcopy(model.state_dict())
        for seed in range(3, 6):
            take(model, steps, seed)
        model.load_state_dict(best)
        model.eval()
        model.train()
        take(model, steps, 6)
        model.float().double().eval()
    same(lazy, eager)


def test_modules_with_a_forward_of_their_own():
    class Places(nn.Embedding):
        def forward(self, words):
            return nn.functional.embedding(
                torch.arange(words.shape[1]) + 2, self.weight, sparse=True
            )

    found = []
    for lazy in (True, False):
        torch.manual_seed(0)
        model = Places(5, 2, dtype=torch.float64)
        optimizer = AdaGrad(model.parameters(), 0.3, L1(0.05), lazy=lazy)
        if lazy:
            optimizer.attach(model)
        for words in (3, 1, 2, 3):
            optimizer.zero_grad()
            model(torch.full((2, words), 4)).square().sum().backward()
            optimizer.step()
        optimizer.flush()
        found.append(model)
    same(*found)


def test_rows_that_a_hook_names():
    model = nn.Embedding(10, 1, sparse=True)
    nn.init.ones_(model.weight)
    optimizer = FOBOS(model.parameters(), 0.1, L1(0.5), schedule="constant")
    optimizer.attach(model)
    model.register_forward_pre_hook(lambda _, words: (words[0] + 5,))
    model(torch.tensor([0])).backward()
    optimizer.step()
    assert model(torch.tensor([1])).item() == pytest.approx(0.95)


def test_growth_that_is_first_read_in_inference_mode():
    model = nn.Embedding(3, 2, sparse=True, dtype=torch.float64)
    optimizer = AdaGrad(model.parameters(), 0.3, L1(0.05))
    optimizer.attach(model)

    def step(rows):
        optimizer.zero_grad()
        model(torch.tensor(rows)).square().sum().backward()
        optimizer.step()

    step([0, 1])
    model.weight.data = torch.cat([model.weight.data, torch.ones(2, 2, dtype=torch.float64)])
    with torch.inference_mode():
        model(torch.tensor([0, 4]))
    step([0, 4])
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("wait", [None, False])
def test_a_step_and_a_module_may_be_compiled(wait, caplog):
    """Both do as they do, outside of any graph, and nothing is compiled anew at each step."""
    (model, optimizer), (eager, plain) = made("adagrad", wait=wait), made("adagrad", lazy=False)
    optimizer.attach(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(optimizer.step, backend="eager")
    read = torch.compile(model, backend="eager")
    for seed in range(12):
        take(eager, plain, seed)
        take(read, optimizer, seed, step=compiled)
    model.eval()
    same(model, eager)
    assert not any("recompile" in record.getMessage() for record in caplog.records)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6
