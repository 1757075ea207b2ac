"""Features of stored lists that are kept: as if the files had no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.kbest_files import KBestFiles

# Names as Moses and cdec have them, dense ones first, and what has them in common.
MOSES = {"LM0_0": "LM0", "TM0_0": "TM0", "TM0_1": "TM0", "WT_a~b": "WT", "WT_c_d": "WT"}
MOSES |= {"PL_s1": "PL"}
CDEC = {"LM": "LM", "LM_OOV": "LM_OOV", "P_0": "P", "P_1": "P", "id:a": "id", "id:b:c": "id"}
CDEC |= {"shape:1_2": "shape"}
DENSE = {"moses": 3, "cdec": 4, "dat": 3}
Lists = list[list[dict[str, float]]]


def is_kept(name: str, common: str, dense: bool, keep: list[str]) -> bool:
    return name in keep or common in keep or (dense and "dense" in keep)


def moses_line(row: dict[str, float]) -> str:
    fields = []
    for label in dict.fromkeys(n.split("_")[0] for n in row if n in list(MOSES)[:3]):
        values = [str(v) for n, v in row.items() if n in list(MOSES)[:3] and n.startswith(label)]
        fields += [f"{label}=", *values]
    return " ".join([*fields, *(f"{n}= {v}" for n, v in row.items() if n not in list(MOSES)[:3])])


def write(folder: Path, form: str, lists: Lists, names: list[str]) -> dict[str, list[Path]]:
    """Write lists with these features alone; return the arguments of `KBestFiles.read`."""
    dense = names[: sum(name in names for name in list(MOSES)[:3])]
    text, scores = [], []
    for s, rows in enumerate(lists):
        head = f"0 {s} {len(rows)}".partition(" ")[2]
        text += [f"FEATURES_TXT_BEGIN_0 {head} {len(dense)} {' '.join(dense)}"] * (form == "dat")
        scores.append(f"SCORES_TXT_BEGIN_0 {head} 9 BLEU")
        for h, row in enumerate(rows):
            some = {name: row[name] for name in names if name in row}
            if form == "dat":
                values = [str(some.pop(name)) for name in dense]
                text.append(" ".join([*values, *(f"{n}={v}" for n, v in some.items())]))
            elif form == "moses":
                text.append(f"{s} ||| w{h % 2} ||| {moses_line(some)} ||| 0")
            else:
                fields = " ".join(f"{n}={v}" for n, v in some.items())
                text.append(f"{s} ||| w{h % 2} ||| {fields} ||| 0")
            scores.append(f"{h % 2} 9 0 8 0 7 0 6 10")
        text += ["FEATURES_TXT_END_0"] * (form == "dat")
        scores.append("SCORES_TXT_END_0")
    lists_path, scores_path = folder / "lists", folder / "scores"
    lists_path.write_text("\n".join(text) + "\n")
    scores_path.write_text("\n".join(scores) + "\n")
    return {"lists": [lists_path]} | ({"scores": [scores_path]} if form == "dat" else {})


def described(decoder: KBestFiles, weight_of: dict[str, float]) -> list[object]:
    """All that a decoder gives under some weights."""
    weights = Weights(decoder.dense_names)
    known = {name: value for name, value in weight_of.items() if name in decoder.features}
    weights.set(list(known), list(known.values()))
    found: list[object] = [decoder.dense_names, len(decoder.features)]
    for kbest in decoder.decode(decoder.sources("dev"), weights):
        rows = [kbest.row(h) for h in range(len(kbest))]
        named = [dict(zip(decoder.features.names(i), v.tolist(), strict=True)) for i, v in rows]
        words = [kbest.text(h) for h in range(len(kbest))]
        found.append((words, named, np.round(kbest.score, 9).tolist()))
        if kbest.statistics is not None:
            found.append(kbest.statistics.tolist())
    return found


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, Lists, list[str], dict[str, float]]:
    form = draw(st.sampled_from(["moses", "cdec", "dat"]))
    common = CDEC if form == "cdec" else MOSES
    names = list(common)
    number = st.integers(1, 3).map(float)
    sparse = st.dictionaries(st.sampled_from(names[DENSE[form] :]), number)
    row = st.builds(
        lambda dense, rest: dict(zip(names, dense, strict=False)) | rest,
        st.lists(number, min_size=DENSE[form], max_size=DENSE[form]),
        sparse,
    )
    lists = draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=4))
    # Each feature occurs, so that each may be asked for.
    lists[0].append(dict.fromkeys(names, 1.0))
    entries = ["dense", *names, *common.values()]
    keep = draw(st.lists(st.sampled_from(entries), min_size=1, max_size=3, unique=True))
    weights = draw(st.fixed_dictionaries(dict.fromkeys(names, number)))
    return form, lists, keep, weights


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(problem=problems())
def test_as_if_the_files_had_no_others(
    problem: tuple[str, Lists, list[str], dict[str, float]], tmp_path: Path
) -> None:
    form, lists, keep, weights = problem
    common = CDEC if form == "cdec" else MOSES
    kept = [
        name
        for i, (name, what) in enumerate(common.items())
        if is_kept(name, what, i < DENSE[form], keep)
    ]
    decoder = KBestFiles(features=keep)
    decoder.read("dev", **write(tmp_path, form, lists, list(common)))
    # The values of a label of Moses's have no numbers in its files: cdec's format names them.
    dense = [name for name in kept if name in list(common)[: DENSE[form]]]
    expected = KBestFiles(format="cdec", dense=dense)
    expected.read("dev", **write(tmp_path, "dat" if form == "dat" else "cdec", lists, kept))
    assert described(decoder, weights) == described(expected, weights)


TEXT = """\
0 ||| a ||| LM0= -1 TM0= 1 2 WT_x= 1 ||| 0
0 ||| b ||| LM0= -2 TM0= 0 1 WT_y= 1 PL_1= 2 ||| 0
"""
OTHER = "0 ||| a ||| LM0= -1 TM0= 1 2 WT_z= 1 ||| 0\n"


def test_sets_agree(tmp_path: Path) -> None:
    """A feature is asked for in the first set; others may lack it, and have more of a template."""
    (tmp_path / "dev").write_text(TEXT)
    (tmp_path / "test").write_text(OTHER)
    decoder = KBestFiles(features=["TM0_1", "WT", "PL_1"])
    decoder.read("dev", [tmp_path / "dev"])
    decoder.read("test", [tmp_path / "test"])
    assert decoder.dense_names == ["TM0_1"]
    names = decoder.features.names(range(len(decoder.features)))
    assert names == ["TM0_1", "WT_x", "WT_y", "PL_1", "WT_z"]
    with pytest.raises(InputError, match="the dense feature TM0_0 is missing here"):
        (tmp_path / "test").write_text("0 ||| a ||| LM0= -1 ||| 0\n")
        decoder.read("other", [tmp_path / "test"])


def test_dense_is_what_the_option_says(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text(TEXT)
    decoder = KBestFiles(dense=["WT_x", "LM0_0"], features=["dense", "PL"], missing=0.0)
    decoder.read("dev", [tmp_path / "dev"])
    assert decoder.dense_names == ["WT_x", "LM0_0"]
    names = decoder.features.names(range(len(decoder.features)))
    assert sorted(names) == ["LM0_0", "PL_1", "WT_x"]


@pytest.mark.parametrize("wanted", ["LM", "WT_", "WT_z", "TM0_2", "all", ""])
def test_what_is_not_there(wanted: str, tmp_path: Path) -> None:
    (tmp_path / "dev").write_text(TEXT)
    message = (
        f"dev: has no feature '{wanted}', and no template or label of that name; there are the "
        "dense features LM0_0, TM0_0, TM0_1, and sparse ones of the templates WT, PL"
    )
    with pytest.raises(InputError, match=message):
        KBestFiles(features=["dense", wanted]).read("dev", [tmp_path / "dev"])


def test_there_may_be_no_dense_ones(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text("".join(f"0 ||| a ||| T{i}:x={i} ||| 0\n" for i in range(1, 26)))
    with pytest.raises(InputError, match="has no feature 'dense'.*features .none., .* and 5 more"):
        KBestFiles(features=["dense"]).read("dev", [tmp_path / "dev"])
