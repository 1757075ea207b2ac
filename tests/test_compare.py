"""Runs, sweeps, files and weights side by side."""

import errno
import os
import re
import shutil
import statistics
from itertools import combinations

import pytest
import sacrebleu
import yaml
from commands import example_target, run_command
from small_lists import put

from torchtune_smt.cli.systems import find_systems
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.runs.outputs import check_text

EXAMPLE = example_folder()
FEW = "samples=50"


def compare(folder, *arguments, command="compare"):
    return run_command(command, *arguments, folder=folder)


def leave_out(lines, number, every):
    """The lines, some without their last words: the fewer `every`, the more."""
    return [
        " ".join(line.split()[: max(1, len(line.split()) - number)]) if i % every == 0 else line
        for i, line in enumerate(lines)
    ]


@pytest.fixture(scope="module")
def sweep(run, tmp_path_factory):
    """A folder with a sweep over two losses and three seeds, as if the runs had been made."""
    folder = tmp_path_factory.mktemp("compare") / "sweep"
    lines = read_lines(run.folder / "test.translations.txt")
    for number, (loss, seed) in enumerate((lo, s) for lo in ("hinge", "ramp") for s in (1, 2, 3)):
        copy = folder / str(number)
        shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns("tensorboard"))
        overrides = ["threads=2", "tuner.epochs=2", f"loss={loss}", f"seed={seed}"]
        changed = leave_out(lines, 1 + (loss == "ramp"), 7 - seed)
        files = {".hydra/overrides.yaml": yaml.safe_dump(overrides)}
        put(copy, {**files, "test.translations.txt": changed})
    return folder


def bleu(path):
    references = [example_target("test", i) for i in range(2)]
    return sacrebleu.corpus_bleu(read_lines(path), references, tokenize="none", force=True)


def test_a_sweep_is_systems_times_seeds(sweep):
    found = compare(sweep.parent, sweep, "table=csv", FEW).rows()
    assert [(row["metric"], row["system"]) for row in found] == [
        (metric, f"loss={loss}")
        for metric in ("BLEU", "chrF2", "TER")
        for loss in ("hinge", "ramp")
    ]
    for row, numbers in zip(found, ((0, 1, 2), (3, 4, 5)), strict=False):
        scores = [bleu(sweep / str(n) / "test.translations.txt") for n in numbers]
        assert row["runs"] == "3"
        assert float(row["score"]) == pytest.approx(statistics.mean(s.score for s in scores))
        assert float(row["s_opt"]) == pytest.approx(statistics.stdev(s.score for s in scores))
        assert float(row["s_sel"]) > 0
        penalty = statistics.mean(s.bp for s in scores)
        assert float(row["brevity_penalty"]) == pytest.approx(penalty)
        for order in range(4):
            mean = statistics.mean(s.precisions[order] for s in scores)
            assert float(row[f"precision_{order + 1}"]) == pytest.approx(mean)
    base, other = found[:2]
    assert (base["p"], base["p_runs"]) == ("", "")
    # So many of the 20 divisions of all runs are as far apart as hinge and ramp.
    every = [bleu(sweep / str(n) / "test.translations.txt").score for n in range(6)]
    apart = [abs(2 * sum(some) - sum(every)) for some in combinations(every, 3)]
    expected = sum(one > apart[0] - 1e-9 for one in apart) / 20
    assert float(other["p_runs"]) == pytest.approx(expected)
    assert 0 < float(other["p"]) <= 1
    # A path names a baseline, too.
    options = [sweep, f"baseline='{sweep / '4'}'", "table=csv", "metrics=[bleu]", FEW]
    again = compare(sweep.parent, *options).rows()
    assert (again[1]["p"], again[0]["p_runs"]) == ("", other["p_runs"])


def test_tables(sweep):
    text = compare(sweep.parent, sweep, "metrics=[bleu,ter]", FEW).check().out
    table = [line for line in text.splitlines() if line.startswith("|")]
    head = "system runs BLEU 95% s_sel s_opt p-over-runs p BP 1-grams 2-grams 3-grams 4-grams"
    assert [c.strip().replace(" ", "-") for c in table[0].split("|")[1:-1]] == head.split()
    assert table[2].startswith("| loss=hinge | 3 | ")
    assert " ± " in table[2]
    assert "- BLEU: nrefs:2|case:mixed" in text
    by_score = sorted((bleu(sweep / n / "test.translations.txt").score, n) for n in "012")
    assert f"- median run of loss=hinge: {sweep / by_score[1][1]}" in text
    output = sweep.parent / "table.tex"
    options = ["table=latex", f"output={output}", "metrics=[bleu]", FEW]
    assert compare(sweep.parent, sweep, *options).check().out == ""
    tex = output.read_text()
    assert r"loss=hinge & 3 & " in tex
    assert f"% median run of loss=hinge: {sweep / by_score[1][1]}\n" in tex
    assert [line.count("&") for line in tex.splitlines() if line.endswith(r"\\")] == [12] * 3


def test_evaluate_is_compare_on_one_system(sweep):
    paths = sweep / "0", sweep / "0" / "test.translations.txt"
    text = compare(sweep.parent, paths[0], FEW, command="evaluate").check().out
    score = bleu(paths[1])
    assert text.startswith(f"{paths[0]}\n  BLEU {score.score:.2f} (nrefs:2|")
    assert f"; BP {score.bp:.3f}, precisions {score.precisions[0]:.1f}/" in text
    of_file = compare(sweep.parent, paths[1], "data=example", FEW, command="evaluate").check().out
    assert of_file == text.replace(str(paths[0]), str(paths[1]))
    wide = ["table=text", FEW]
    assert compare(sweep.parent, paths[0], *wide).check().out == text


def test_weights_translate(run):
    weights, lists = run.weights, run.place / "compared.nbest"
    translate = [f"weights={weights}", f"input={EXAMPLE / 'test.de'}", f"output={lists}"]
    run_command("translate", *translate, "n_best=5", folder=run.place).check()
    options = ["metrics=[bleu]", "table=csv", FEW]
    systems = f"systems={{run:{run.folder},weights:{weights},lists:{lists}}}"
    found = compare(run.place, systems, *options).rows()
    assert len({row["score"] for row in found}) == 1
    assert [row["system"] for row in found] == ["run", "weights", "lists"]
    assert [row["p"] for row in found] == ["", "1.0", "1.0"]
    assert [bool(row["oracle"]) for row in found] == [False, False, True]
    assert float(found[2]["oracle"]) > float(found[2]["score"])
    # Another set than that of the run.
    other = [f"data.test=[{EXAMPLE / 'dev.de'},{EXAMPLE / 'dev.en.0'},{EXAMPLE / 'dev.en.1'}]"]
    (translated,) = compare(run.place, run.folder, "data=example", *other, *options).rows()
    (stored,) = compare(run.place, run.folder, "split=dev", *options).rows()
    assert translated["score"] == stored["score"]


def test_bad_systems(sweep, tmp_path):
    copy, file = tmp_path / "copy", sweep / "1" / "test.translations.txt"
    shutil.copytree(sweep / "0", copy)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["data"]["lowercase"] = not config["data"]["lowercase"]
    (tmp_path / "bad").mkdir()
    put(tmp_path, {"text": "a house\nmine\n", "json": '{"text": "a house"}\n{"text": "mine"}\n'})
    twice = f"systems={{a:['{file}'],b:[x],a:[y]}}"
    for change, arguments, said in (
        ({}, [tmp_path / "bad"], "holds no run with weights.txt.gz; give"),
        ({}, [twice, "data=example"], f"{twice}: a is there twice, and one would be lost; "),
        ({}, [sweep, sweep / "1"], "a run or a file is named twice: "),
        ({"config.yaml": yaml.safe_dump(config)}, [sweep / "1", copy], "with other data than"),
        ({}, [copy, "data=example"], "copy: was tuned on text with lowercase="),
        ({}, [copy, "data=example", "data.target_language=de"], "with target_language=en, and"),
        ({}, [tmp_path / "text", f"references=[{tmp_path}/json]"], "json: holds JSON"),
        ({}, [sweep, "baseline=nobody"], "none of the systems; they are loss=hinge, loss=ramp"),
    ):
        put(copy, change)
        outcome = compare(sweep.parent, *arguments, FEW)
        outcome.refused(said)
        assert outcome.out == ""


def test_a_run_is_scored_with_the_data_of_its_own_project(run, tmp_path):
    for name, begin in (("a", 0), ("b", 15)):
        project = tmp_path / name
        folder = project / "outputs" / name
        shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
        for kind in ("de", "en.0", "en.1"):
            put(project, {f"d.{kind}": read_lines(EXAMPLE / f"dev.{kind}")[begin : begin + 15]})
        lines = read_lines(run.folder / "dev.translations.txt")[begin : begin + 15]
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["data"] |= {"folders": None, "dev": ["d.de", "d.en.0", "d.en.1"]}
        hydra = (folder / ".hydra" / "hydra.yaml").read_text()
        hydra = hydra.replace(str(run.folder), str(folder)).replace(str(run.place), str(project))
        files = {"dev.translations.txt": lines, "config.yaml": yaml.safe_dump(config)}
        put(folder, {**files, ".hydra/hydra.yaml": hydra})

    def scored(place, path):
        options = ["split=dev", "metrics=[bleu]", "table=csv", FEW]
        (row,) = compare(tmp_path / place, path, *options).rows()
        return row["score"]

    score = {name: scored(name, f"outputs/{name}") for name in ("a", "b")}
    assert score["a"] != score["b"]
    assert scored("b", "../a/outputs/a") == scored(".", "a/outputs/a") == score["a"]
    outcome = compare(tmp_path / "b", "outputs/b", "../a/outputs/a", "split=dev", FEW)
    outcome.refused("../a/outputs/a: was tuned with other data than outputs/b")
    # A copy has data of its own, and so has a project that has another place now.
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert scored("copy", "outputs/a") == score["a"]
    both = compare(tmp_path / "copy", "outputs/a", "../a/outputs/a", "split=dev", FEW).check()
    assert "two runs have the same seed" in both.err
    (tmp_path / "a").rename(tmp_path / "moved")
    assert scored("moved", "outputs/a") == scored("b", "../moved/outputs/a") == score["a"]


def test_a_folder_that_cannot_be_read_is_no_folder_without_runs(sweep, monkeypatch):
    scan = os.scandir

    def refuse(path):
        # Whoever tests as root may read everything.
        if str(path) == str(sweep / "2"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    said = f"error: {sweep / '2'}: cannot be read (Permission denied), and there"
    compare(sweep.parent, sweep, FEW).refused(said)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"text": "ein haus"}', "", '["ein", "haus"]'], "JSON"),
        (["{", '  "text": "ein haus"', "}"], "JSON"),
        (["<refset>", "<seg>ein</seg>", "haus", "</refset>"], "markup"),
        (["['ein', 'haus']", """["ein", "'s"]"""], "JSON"),
        (["H-0\t-0.5\tein haus", "H-1\t-0.25\tein"], "tabs"),
        (['<seg id="1"> ein haus </seg>', "<seg> ein </seg>"], "markup"),
        (["-0.5", "1e-3 nan"], "numbers"),
    ],
)
def test_what_is_no_text_has_no_score(lines, said):
    with pytest.raises(InputError, match=f"out: holds .*{re.escape(said)}.*plain text"):
        check_text("out", lines)
    # Some such lines among others are text.
    check_text("out", [*lines, "ein haus"])


def test_lines_that_data_leave_out(tmp_path):
    """Translations may be of all lines, and references then are those of files."""
    lists = [f"{i} ||| a ||| F=1 ||| 0" for i in range(3)]
    put(tmp_path, {"de": "\nx\n\n", "en": "a\nb\nc\n", "all": "a\nb\nd\n", "lists": lists})
    names = ["name=x", "source_language=de", "target_language=en", "empty=skip", "test=[de,en]"]
    data = ["data=files", *(f"data.{name}" for name in names)]
    said = "data.empty=skip left lines out: leave the same out here, or compare"
    for path in ("all", "lists"):
        compare(tmp_path, path, *data, FEW, command="evaluate").refused(said)
        compare(tmp_path, path, "references=[en]", FEW, command="evaluate").check()


def test_what_systems_are_called(sweep, tmp_path):
    """The order of options makes none; seeds may stand apart; runs that are not done are none."""
    orders = [["loss=hinge", "tuner.epochs=2"], ["tuner.epochs=3", "tuner.epochs=2", "loss=hinge"]]
    for seed, overrides in enumerate(orders):
        copy = tmp_path / "both" / str(seed)
        shutil.copytree(sweep / "0", copy)
        overrides.insert(1, f"seed={seed}")
        put(copy, {".hydra/overrides.yaml": yaml.safe_dump(overrides)})
    shutil.copytree(sweep / "3", tmp_path / "both" / "other")
    found = find_systems(str(tmp_path / "both"))
    assert sorted(map(len, found.values())) == [1, 2]
    (name,) = (name for name, outputs in found.items() if len(outputs) == 2)
    assert name == "loss=hinge"
    for run in ("0", "1"):
        shutil.copytree(sweep / run, tmp_path / "seeds" / run)
    # A digit for Python, and none of a number.
    (tmp_path / "seeds" / "1").rename(tmp_path / "seeds" / "1²")
    assert [*find_systems(str(tmp_path / "seeds"))] == [str(tmp_path / "seeds")]
    assert [*find_systems(str(tmp_path / "seeds"), group_seeds=False)] == ["seed=1", "seed=2"]
    (tmp_path / "seeds" / "1²" / "weights.txt.gz").unlink()
    outcome = compare(tmp_path, "seeds", FEW).check()
    assert "warning: seeds/1²: is not finished, and is left out" in outcome.err
