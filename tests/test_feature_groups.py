"""Groups of features: numbers, projections, and the file that lists them."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.runs.log import draw_groups
from torchtune_smt.tuners.grouping.groups import FeatureGroups, read_groups, save_groups


@st.composite
def grouped(draw):
    """Groups as OSCAR's structure names them, with some dense features in front."""
    n_dense = draw(st.integers(0, 3))
    blocks = draw(hnp.arrays(np.int64, st.integers(n_dense, 12), elements=st.integers(-1, 9)))
    keep = draw(st.none() | hnp.arrays(bool, blocks.size))
    return blocks, n_dense, keep


@given(grouped())
def test_groups_are_those_of_equal_numbers(case):
    blocks, n_dense, keep = case
    groups = FeatureGroups.of(blocks, n_dense, keep_zeros=keep)
    of = groups.group.tolist()
    assert of[:n_dense] == list(range(n_dense))
    assert sorted(set(of) - {-1}) == list(range(len(groups)))
    assert groups.sizes.tolist() == [of.count(g) for g in range(len(groups))]
    assert groups.n_sparse == len(groups) - n_dense
    for i in range(n_dense, blocks.size):
        assert (of[i] >= 0) == (blocks[i] >= 0 or (keep is not None and keep[i]))
        for j in range(n_dense, blocks.size):
            if of[i] >= 0 and of[j] >= 0:
                assert (of[i] == of[j]) == (blocks[i] == blocks[j])
            if blocks[i] > blocks[j] >= 0:
                assert of[i] > of[j]
    assert all(of.count(g) == 1 for g in range(n_dense))


@given(grouped(), st.integers(0, 4), st.randoms(use_true_random=False))
def test_unpacking_and_means(case, later, random):
    blocks, n_dense, keep = case
    factor = random.choice([None, 2.0 ** np.array([random.randint(-2, 2) for _ in blocks])])
    groups = FeatureGroups.of(blocks, n_dense, keep_zeros=keep, factor=factor)
    dimension = blocks.size + later
    weights = np.array([random.choice([-1.5, 0.25, 3.0]) for _ in range(len(groups))])
    unpacked = groups.unpack(weights, dimension)
    for j, g in enumerate([*groups.group.tolist(), *[-1] * later]):
        own = 1 if factor is None or j < n_dense else factor[j] if g >= 0 else 0
        assert unpacked[j] == (0 if g < 0 else own * weights[g])
    assert np.allclose(groups.mean(unpacked), weights, rtol=1e-15, atol=0)
    assert groups.pack(unpacked).tolist() == weights.tolist()
    groups = replace(groups, factor=None)
    atomic = np.array([random.uniform(-1, 1) for _ in range(dimension)])
    for g, mean in enumerate(groups.mean(atomic).tolist()):
        assert mean == pytest.approx(np.mean(atomic[: blocks.size][groups.group == g]))
    # Weights of fewer features than the groups know: the others have 0.
    short = atomic[: blocks.size // 2]
    padded = np.append(short, np.zeros(dimension - short.size))
    assert np.array_equal(groups.mean(short), groups.mean(padded))


def test_the_file_by_hand(tmp_path):
    groups = FeatureGroups.of(np.array([-1, -1, 7, 2, 7, 2, -1]), 2)
    names = Vocabulary(["lm", "penalty", "rule:b", "rule:a", "rule:c d", "rule:e", "never"])
    save_groups(tmp_path / "groups.tsv", groups, np.array([0.5, -1.0, 0.1, -0.2]), names)
    assert (tmp_path / "groups.tsv").read_text() == (
        "group\tweight\tsize\tfeature\n"
        "0\t0.5\t1\tlm\n"
        "1\t-1.0\t1\tpenalty\n"
        "3\t-0.2\t2\trule:b\n"
        "3\t-0.2\t2\trule:c d\n"
        "2\t0.1\t2\trule:a\n"
        "2\t0.1\t2\trule:e\n"
    )


@given(grouped(), st.randoms(use_true_random=False))
def test_the_file_is_read_back(tmp_path_factory, case, random):
    path = tmp_path_factory.getbasetemp() / "groups.tsv.gz"
    blocks, n_dense, keep = case
    groups = FeatureGroups.of(blocks, n_dense, keep_zeros=keep)
    weights = np.array([random.gauss(0, 1) for _ in range(len(groups))])
    features = Vocabulary([f"f {i}" for i in range(blocks.size)])
    save_groups(path, groups, weights, features)
    found, values = read_groups(path, features, n_dense)
    assert np.array_equal(found.group, groups.group)
    assert np.array_equal(values, weights)
    # Equal groups give equal bytes, and names that are not known yet are added.
    first = path.read_bytes()
    save_groups(path, found, values, features)
    assert path.read_bytes() == first
    fresh = Vocabulary([f"f {i}" for i in range(n_dense)])
    again, _ = read_groups(path, fresh, n_dense)
    assert np.array_equal(np.sort(again.sizes), np.sort(groups.sizes))


GOOD = "group\tweight\tsize\tfeature\n0\t0.5\t1\tlm\n1\t0.1\t2\ta\n1\t0.1\t2\tb\n"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("group\tweight", "group weight", 1, "columns"),
        (GOOD, "", 1, "is it a file of groups?"),
        ("0.5\t1\tlm", "0.5\tlm", 2, "is no row"),
        ("0.5\t1\tlm", "nan\t1\tlm", 2, "a finite number"),
        ("1\t0.1\t2\tb", "1\t0.3\t2\tb", 4, "contradicts"),
        ("\tb\n", "\ta\n", 4, "contradicts"),
        ("1\t0.1\t2\tb\n", "", None, "is not whole"),
        ("0.5\t1\tlm", "0.5\t1\tother", None, "the first 1 features"),
        ("0\t0.5\t1", "0\t0.5\t2", None, "is not whole"),
    ],
)
def test_bad_files(tmp_path, old, new, line, message):
    path = tmp_path / "groups.tsv"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        read_groups(path, Vocabulary(["lm"]), 1)
    assert error.value.line == line
    assert str(error.value).startswith(f"{path}:" if line is None else f"{path}:{line}: ")
    assert message in str(error.value)


def test_groups_of_another_model_or_a_damaged_file(tmp_path):
    path = tmp_path / "groups.tsv.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    for dense in (["a", "lm"], ["lm", "a", "other"]):
        with pytest.raises(InputError, match=f"{len(dense)} dense"):
            read_groups(path, Vocabulary(dense), len(dense))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="no whole gzip file"):
        read_groups(path, Vocabulary(), 0)


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [([], []), ([0.0], [1]), ([1e-300, -1e300], [1, 10**7]), ([0.1, -0.2, 0.0], [5, 1, 300])],
)
def test_pictures_show_each_group(weights, sizes):
    picture = draw_groups(np.array(weights), np.array(sizes, np.int64), "title")
    assert picture.shape == (560, 800, 3) and picture.dtype == np.uint8
    blue = (picture == (31, 119, 180)).all(axis=2).any()
    assert blue == any(w > 0 for w in weights)
    assert (picture == (255, 127, 14)).all(axis=2).any() == any(w < 0 for w in weights)
