"""The report: what it shows, what it escapes, and that it asks for nothing."""

import gzip
import re
import shutil
from base64 import b64decode

import pytest
import yaml
from commands import run_command
from pages import check_self_contained
from small_lists import put

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.decoders.base import Derivation
from torchtune_smt.evaluation.report import largest_groups, rendered
from torchtune_smt.evaluation.tables import Table
from torchtune_smt.evaluation.translations import Bucket, NgramDifference, align

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def reported(run, tmp_path_factory):
    """A page on two systems: the run, and another with two seeds and hostile translations."""
    place = tmp_path_factory.mktemp("report")
    lines = read_lines(run.folder / "test.translations.txt")
    for name, seed in (("base", 1), ("bad", 1), ("bad", 2), ("bad", 3)):
        folder = place / f"{name}{seed}"
        shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
        overrides = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text())
        overrides += [f"seed={seed}"] + (["loss=hinge"] if name == "bad" else [])
        put(folder, {".hydra/overrides.yaml": yaml.safe_dump(overrides)})
        if name == "bad":
            changed = [f"{HOSTILE} {x}" if i < 10 * seed else x for i, x in enumerate(lines)]
            put(folder, {"test.translations.txt": changed})
    table = ["group\tweight\tsize\tfeature", f"7\t-0.5\t2\trule_id:{HOSTILE}"]
    table += ["7\t-0.5\t2\trule_id:b", "9\t0.1\t1\tc", ""]
    put(place / "bad2", {"groups.tsv.gz": gzip.compress("\n".join(table).encode())})
    # The model is the run's.
    (place / "outputs").symlink_to(run.place / "outputs")
    systems = "systems={base:[base1],bad:[bad1,bad2,bad3]}"
    options = [systems, "samples=20", "html=report.html", "metrics=[bleu]"]
    outcome = run_command("compare", *options, folder=place).check()
    assert "report: report.html" in outcome.err
    return place / "report.html"


def test_text_is_escaped_and_nothing_is_loaded(reported):
    text = reported.read_text()
    shown = check_self_contained(text)
    assert HOSTILE in shown.words
    assert f"rule_id:{HOSTILE}" in shown.words
    assert {"table", "details", "img"} <= set(shown.tags)
    words = " ".join(shown.words.split())
    assert "bad: what follows is of bad2, its median run." in words
    assert "bad is worse" in words
    # Its translations are not those of its decoder, and nothing says how they came about.
    assert words.count("derivation of base") >= 6
    assert "derivation of bad" not in words
    for said in ("fires in", "LanguageModel", "groups of features"):
        assert said in words
    curves = re.search(r"data:image/svg\+xml;base64,([\w+/=]+)", text)
    svg = b64decode(curves[1])
    assert svg.startswith(b"<?xml") and b"<!-- bad (test " in svg


def test_all_text_is_escaped():
    h = HOSTILE
    part = Derivation(h, h, 0, 1, (Derivation(h, h, 0, 1),))
    decided = [{"name": h, "weight": 1.0, "difference": 1.0, "value": 1.0}]
    side = {"system": h, "gain": 1.0, "decided": decided, "margin": 1.0}
    side["derivation"] = Derivation("", "", 0, 1, (part,))
    example = {"number": 1, "source": h, "references": [h], "known": {h}, "sides": [side] * 2}
    example["pieces"] = align([h], [h, h])
    ngram = NgramDifference(h, 1, 0)
    pair = {"systems": [h, h], "better": [example], "worse": [], "more": [ngram], "fewer": []}
    model = {"system": h, "run": h, "looked_at": 1}
    model["weights"] = {h: [{"name": h, "weight": 1.0, "example": (h, h)}]}
    model["groups"] = [{"number": h, "weight": h, "size": h, "members": [h]}]
    text = rendered(
        "page",
        None,
        title=h,
        tables=[Table([h, h], [[h, h]], [h])],
        systems=[h, h],
        frequencies=[Bucket(h, 1, [1.0, 1.0])],
        lengths=[Bucket(h, 1, [1.0, 1.0])],
        pairs=[pair],
        runs={h: h},
        models=[model],
        notes=[h],
    )
    # Each of those above, some of them several times.
    escaped = text.count("&lt;script&gt;alert(1)&lt;/script&gt;")
    assert check_self_contained(text).words.count(h) == escaped > 50


def test_a_system_alone_and_without_a_run(run, tmp_path):
    shutil.copy(run.folder / "test.translations.txt", tmp_path / "a")
    files = [example_folder() / f"test.en.{i}" for i in range(2)]
    given = ["a", f"references=[{files[0]},{files[1]}]", "samples=20", "html=a.html"]
    run_command("evaluate", *given, folder=tmp_path).check()
    words = " ".join(check_self_contained((tmp_path / "a.html").read_text()).words.split())
    assert "a: the best sentences" in words
    assert "a: the worst sentences" in words
    assert "a has no features and derivations here: the run that made it is not known." in words
    assert "Weights" not in words


def test_words_are_those_of_the_metric(tmp_path):
    put(tmp_path, {"U": "THE CAT, SAT DOWN\n", "L2": "the cat, sat up\n"})
    put(tmp_path, {"ref": "the cat, sat down\n"})
    options = ["references=ref", "metrics=[bleu]", "samples=20", "html=u.html"]
    options += ["lowercase=true", "tokenize=13a"]
    run_command("compare", "U", "L2", *options, folder=tmp_path).check()
    text = (tmp_path / "u.html").read_text()
    words = " ".join(re.sub("<[^>]*>", " ", text).split())
    assert "Words are shown and counted as BLEU takes them: in lower case, tokenize=13a." in words
    # Of the words of "the cat , sat down" all, and four; "up" is none of them.
    assert "occurrences number U L2 1 5 100.0 88.9" in words
    assert "n-grams that L2 gets more often n-gram L2 U none less often" in words
    assert re.findall(r'class="hit">(.+?)<', text) == "the cat , sat the cat , sat down".split()
    assert "reference: the cat, sat down" in words


@pytest.mark.parametrize("factor", [False, True])
def test_groups_with_factors(tmp_path, factor):
    middle, more = ("\t0.5", "\tfactor") if factor else ("", "")
    head = f"group\tweight\tsize{more}\tfeature"
    rows = [f"7\t-0.5\t2{middle}\ta\tb", f"7\t-0.5\t2{middle}\tc"]
    path = put(tmp_path, {"groups.tsv": [head, *rows]})
    row = {"number": "7", "weight": "-0.5", "size": "2", "members": ["a\tb", "c"]}
    assert largest_groups(path) == [row]
    with pytest.raises(InputError, match="is no file of groups"):
        largest_groups(put(tmp_path, {"groups.tsv": [head, "7\t-0.5"]}))
