"""Weights: what they keep, their files, and scores and margins of sparse rows under them."""

import copy
import gzip
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_lists import put, weights_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import score_rows
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import WRITABLE, read_weights, save_weights
from torchtune_smt.losses import Logistic, reduce


def changed(weights, values, how):
    """Return weights, or a copy of them, that have been given values in some way of torch."""
    new = torch.tensor(values, dtype=torch.float64)
    if how == "data":
        weights.parameter.data = new
    elif how == "vector_to_parameters":
        torch.nn.utils.vector_to_parameters(new, [weights.parameter])
    elif how == "float32":
        weights.parameter.data = new.float()
    else:
        weights.parameter.data[:] = new
        weights = (
            copy.deepcopy(weights) if how == "deepcopy" else pickle.loads(pickle.dumps(weights))
        )
    return weights


@pytest.mark.parametrize("how", ["data", "vector_to_parameters", "float32", "deepcopy", "pickle"])
def test_growing_keeps_the_numbers(how):
    old = Weights(["a", "b"])
    old.take(Vocabulary(["c"]))
    weights = changed(old, [1.0, 2.0, 3.0], how)
    with torch.no_grad():
        weights.parameter += 1.0
    weights.take(Vocabulary(["d", *(f"more{i}" for i in range(40))]))
    assert weights.parameter[:3].tolist() == [2.0, 3.0, 4.0]
    assert len(weights) == 44 and not weights.parameter[3:].any()
    assert weights.parameter.dtype == (torch.float32 if how == "float32" else torch.float64)
    if how in ("deepcopy", "pickle"):
        assert old.parameter.tolist() == [1.0, 2.0, 3.0] and len(old.features) == 3
    # The tensor that was given is left alone.
    whole = torch.arange(30, dtype=torch.float64)
    weights = Weights(["a"])
    weights.parameter.data = whole[:1]
    weights.take(Vocabulary(["b", "c"]))
    with torch.no_grad():
        weights.parameter += 7.0
    assert weights.parameter.tolist() == [7.0, 7.0, 7.0]
    assert whole.tolist() == list(range(30))


def test_a_file_of_nothing_but_comments_has_no_weights(tmp_path):
    for text in ("", "\n", "# nothing\n"):
        assert weights_of(put(tmp_path, {"empty": text})) == {}


# Files

name = st.text(
    st.one_of(st.sampled_from("ab=# \t|é:"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=8,
).filter(WRITABLE.fullmatch)
value = st.floats(allow_nan=False, allow_infinity=False)


@given(entries=st.dictionaries(name, value, max_size=12), dense=st.integers(0, 3))
def test_what_is_saved_is_loaded_exactly(entries, dense, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.txt"
    weights = Weights(list(entries)[:dense])
    weights.set(list(entries), list(entries.values()))
    count = save_weights(path, weights)
    active = {n: v for n, v in entries.items() if v != 0}
    assert count == len(active)
    assert weights_of(path) == active
    # Weights of either kind are saved alike.
    again = path.with_name("again")
    assert save_weights(again, weights.frozen()) == count
    assert again.read_bytes() == path.read_bytes()


def test_order_and_gzip(tmp_path):
    weights = Weights(["LM", "Glue", "Zero"])
    weights.set(["LM", "Glue", "z", "b=2", "gone"], [0.1, -1 / 3, 1.0, 2e-300, 0.0])
    text = "LM 0.1\nGlue -0.3333333333333333\nb=2 2e-300\nz 1.0\n"
    save_weights(tmp_path / "w.txt", weights)
    assert (tmp_path / "w.txt").read_text() == text
    save_weights(tmp_path / "w.gz", weights)
    assert gzip.decompress((tmp_path / "w.gz").read_bytes()).decode() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.gz", "w.txt"]
    assert len(read_weights(tmp_path / "w.gz")[0]) == 4


def test_other_tools_files(tmp_path):
    path = put(
        tmp_path,
        {
            "weights": b"# a comment\n\nLanguageModel 1.5\r\n  Glue\t-2e-3\nx=y=.5\nshort  7 \n"
            b"R:[X] ||| a = b 1\nLM0= 0.5\nPenalty = -1\nTM0 =2\n= 3"
        },
    )
    expected = {"LanguageModel": 1.5, "Glue": -0.002, "x=y": 0.5, "short": 7.0}
    expected |= {"R:[X] ||| a = b": 1.0, "LM0=": 0.5, "Penalty": -1.0, "TM0": 2.0, "=": 3.0}
    assert list(weights_of(path).items()) == list(expected.items())


BAD = {
    b"lonely": "has no value",
    b"a=": "has no value",
    b"=1": "has no name",
    b"a nan": "no finite number",
    b"a \xff 1": "UTF-8",
    b"good 2": "'good' has a weight already, in line 2; remove one",
}


@pytest.mark.parametrize("line", BAD)
@pytest.mark.parametrize("after", [b"", b"\nlonely\n", b"\nmore 1"])
def test_bad_lines_are_named(tmp_path, line, after):
    path = put(tmp_path, {"w": b"# comment\ngood 1\n\n" + line + after})
    # What a line says by itself is found before what two say.
    twice = line == b"good 2" and after == b"\nlonely\n"
    with pytest.raises(InputError, match=BAD[b"lonely" if twice else line]) as caught:
        read_weights(path)
    assert str(caught.value).startswith(f"{path}:{5 if twice else 4}: ")
    with pytest.raises(InputError, match="no such file"):
        read_weights(tmp_path / "nowhere")


BAD_NAMES = ["#a", "\ufeffa", " a", "a\t", "a\nb", "a\0b", "a =", ""]
BAD_WEIGHTS = dict.fromkeys(BAD_NAMES, "cannot be written")
BAD_WEIGHTS |= {"nan": "weight of 'nan' is", "inf": "weight of 'inf' is"}


# Scores

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@given(st.integers(0, 2**32 - 1))
def test_margins_and_gradient_equal_dense_algebra(seed):
    generator = np.random.default_rng(seed)
    dimension = int(generator.integers(1, 30))
    weights = Weights()
    values = generator.normal(size=dimension)
    weights.set([f"f{i}" for i in range(dimension)], values)
    differences, dense_differences = [], [np.zeros((0, dimension))]
    for _ in range(generator.integers(0, 4)):
        rows, dense = random_rows(generator, 5, dimension)
        pairs = generator.integers(0, 5, (generator.integers(0, 6), 2))
        differences.append(rows.differences(pairs))
        dense_differences.append(dense[pairs[:, 0]] - dense[pairs[:, 1]])
    x = torch.from_numpy(np.concatenate(dense_differences))
    feature, rows = Rows.joined(differences).numbered()
    margins = score_rows(rows, weights.parameter, feature)
    reduce(Logistic()(margins), "sum").backward()

    w = weights.parameter.detach().clone().requires_grad_()
    expected = x @ w
    torch.log1p(torch.exp(-expected)).sum().backward()
    gradient = weights.parameter.grad
    assert torch.allclose(margins, expected, rtol=0, atol=1e-12)
    assert gradient.is_sparse and gradient.shape == w.shape
    assert torch.allclose(gradient.to_dense(), w.grad, rtol=0, atol=1e-12)
    # Only features that differ in some pair are touched, each once, in ascending order.
    assert gradient._indices()[0].tolist() == x.any(0).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_score_rows_equal_csr_product(device):
    generator = np.random.default_rng(1)
    rows, dense = random_rows(generator, 8, 20)
    for kind in (torch.float64, torch.float32):
        w = torch.from_numpy(generator.normal(size=20)).to(device, kind).requires_grad_()
        scores = score_rows(rows, w)
        u, x = torch.from_numpy(generator.normal(size=8)), torch.from_numpy(dense)
        scores.backward(u.to(device, kind))
        assert scores.dtype == w.grad.dtype == kind
        close = {"rtol": 0, "atol": 1e-12 if kind == torch.float64 else 1e-5}
        assert torch.allclose(scores.cpu().double(), x @ w.cpu().double(), **close)
        assert torch.allclose(w.grad.to_dense().cpu().double(), x.T @ u, **close)


def test_rounding_noise_is_no_difference():
    total, other = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert total != other
    values = np.array([total, 1.0, other, 2.0])
    rows = Rows(np.array([0, 2, 4]), np.array([0, 1, 0, 1], np.int32), values)
    rows = rows.differences(np.array([[0, 1]]))
    assert rows.feature.tolist() == [1] and rows.value.tolist() == [-1]


@pytest.mark.parametrize("bad", BAD_WEIGHTS)
def test_weights_that_cannot_be_written(tmp_path, bad):
    value = float(bad) if bad in ("nan", "inf") else 1.0
    with pytest.raises(ValueError, match=BAD_WEIGHTS[bad]):
        save_weights(tmp_path / "w", FrozenWeights.of({"fine": 1.0, bad: value}))
    assert not any(tmp_path.iterdir())


def random_rows(generator, k, dimension):
    """Rows of random features; the dense matrix beside them."""
    dense = generator.integers(-2, 3, (k, dimension)) * (generator.random((k, dimension)) < 0.3)
    dense = dense.astype(np.float64)
    rows, columns = dense.nonzero()
    begin = np.searchsorted(rows, np.arange(k + 1)).astype(np.int64)
    return Rows(begin, columns.astype(np.int32), dense[rows, columns]), dense
