"""Tuning on lists from files to the report: figures against simple ones, and refusals."""

import base64
import json
import tarfile
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import run_command

from torchtune_smt import KBestLists, ListSet, Vocabulary, read_weights, tune_lists
from torchtune_smt.core.errors import InputError
from torchtune_smt.evaluation.oracle import best_choice
from torchtune_smt.evaluation.report import write_tuned
from torchtune_smt.evaluation.tuned import _folds
from torchtune_smt.metrics import CharacterErrorRate, WordErrorRate

SPEECH = Path(__file__).resolve().parents[2] / "shared" / "data" / "librispeech-nbest"


def records(seed, n, noise=1.0, k=5):
    """Sentences of which `good` says what has fewer errors, and `own` what the decoder thought."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(n):
        words = [f"w{w}" for w in generator.integers(0, 9, 6)]
        hypotheses = []
        for _ in range(k):
            wrong = generator.random(6) < generator.random() * 0.6
            text = " ".join("x" if bad else word for word, bad in zip(words, wrong, strict=True))
            good = float(-wrong.sum() + noise * generator.standard_normal())
            own = float(generator.standard_normal())
            features = {"good": good, "own": own}
            hypotheses.append({"text": text, "features": features, "score": 0.2 * good + own})
        hypotheses.sort(key=lambda one: -one["score"])
        found.append({"id": f"s{number % 7}-{seed}-{number}", "hypotheses": hypotheses})
        found[-1]["references"] = [" ".join(words)]
    return found


def as_set(name, some, vocabularies, groups=True):
    lists = KBestLists.of_records(some, words=vocabularies[0], names=vocabularies[1])
    references = [[one["references"][0].split()] for one in some]
    return ListSet(
        name, lists, references, [r["id"].partition("-")[0] for r in some] if groups else None
    )


def test_what_is_reported_is_what_is_there():
    vocabularies = Vocabulary(), Vocabulary()
    dev, test = (as_set(n, records(*w), vocabularies) for n, w in (("d", (1, 150)), ("t", (2, 80))))
    said = []
    tuned = tune_lists(
        *(dev, test),
        metric=WordErrorRate(),
        held_out=[CharacterErrorRate()],
        samples=500,
        say=said.append,
    )
    assert said == ["these lists were sorted by 0.2 good + 1 own"]
    by = {(one.what, one.measure.name): one for one in tuned.judged}
    assert set(by) == set(product(["d", "d, 5 folds", "t"], ["WER", "CER"]))
    for name, some in (("d", records(1, 150)), ("t", records(2, 80))):
        # The words that are wrong are x, and no other differs.
        table = [[h["text"].split().count("x") for h in r["hypotheses"]] for r in some]
        one = by[name, "WER"]
        each = 100 / (6 * len(some))
        assert one.before == pytest.approx(each * sum(row[0] for row in table))
        assert one.best == pytest.approx(each * sum(map(min, table)))
        assert one.worst == pytest.approx(each * sum(map(max, table)))
        w = tuned.weights.values[tuned.weights.features.lookup(["good", "own"])]
        after = [
            row[int(np.argmax([w @ [*h["features"].values()] for h in r["hypotheses"]]))]
            for row, r in zip(table, some, strict=True)
        ]
        assert one.after == pytest.approx(each * sum(after))
        assert one.low < one.after < one.high
    # Chosen by it, it has no p. Of the 2^7 ways to swap groups, two are as extreme.
    assert by["d", "WER"].p is None
    assert by["t", "WER"].p == 2 / 2**7
    assert by["d", "WER"].after <= by["d, 5 folds", "WER"].after < by["d", "WER"].before
    for one in tuned.ranges:
        assert one.equal[0] <= one.weight <= one.equal[1]
        assert one.gaining[0] <= one.equal[0] <= one.equal[1] <= one.gaining[1]
        middles = (one.curve.bound[1:] + one.curve.bound[:-1]) / 2
        inside = (middles > one.gaining[0]) & (middles < one.gaining[1])
        assert (-100 * one.curve.score[inside] < by["d", "WER"].before - 1e-6).all()
    assert "5 folds" in tuned.text()


def test_cross_validation_tells_noise_from_gain():
    """Features without meaning: on the lists tuned on there is a gain, and none elsewhere."""
    gained, expected = [], []
    for seed in range(8):
        some = records(seed, 60)
        generator = np.random.default_rng(seed)
        for one in (h for r in some for h in r["hypotheses"]):
            one["features"] = dict(zip("abc", generator.standard_normal(3), strict=True))
            one["score"] = one["features"]["a"]
        for one in some:
            one["hypotheses"].sort(key=lambda h: -h["score"])
        tuned = tune_lists(
            as_set("d", some, (Vocabulary(), Vocabulary())), metric=WordErrorRate(), samples=50
        )
        inside, folds = tuned.judged
        gained.append(inside.before - inside.after)
        expected.append(folds.before - folds.after)
    assert min(gained) > 0
    assert np.mean(gained) > 4
    assert abs(np.mean(expected)) < 2.5


def test_groups_are_in_one_fold_each():
    group = np.repeat(np.arange(12), np.arange(1, 13))
    fold = _folds(group, 4, 0)
    assert all(np.unique(fold[group == g]).size == 1 for g in range(12))
    sizes = np.bincount(fold)
    assert sizes.size == 4
    assert sizes.max() - sizes.min() <= 3


@pytest.mark.parametrize("seed", range(5))
def test_the_best_choice_by_brute_force(seed):
    generator = np.random.default_rng(seed)
    statistics = generator.integers(1, 7, (9, 2))
    if seed % 2:
        statistics[:, 1] = 4
    begin = np.array([0, 3, 6, 9])
    score = lambda sums: -sums[..., 0] / sums[..., 1]  # noqa: E731
    found = score(statistics[best_choice(statistics, begin, score)].sum(axis=0))
    choices = product(range(3), range(3, 6), range(6, 9))
    every = sorted(float(score(statistics[list(c)].sum(axis=0))) for c in choices)
    # A ratio with other denominators is no sum over sentences.
    assert found == pytest.approx(every[-1]) if seed % 2 else found >= every[-2]


def write(folder, name, some):
    (folder / name).write_text("".join(f"{json.dumps(one)}\n" for one in some))
    lines = [f"{one['id']} {one['references'][0]}\n" for one in some]
    (folder / f"{name}.text").write_text("".join(lines))
    (folder / f"{name}.spk").write_text(
        "".join(f"{one['id']} {str(one['id']).partition('-')[0]}\n" for one in some)
    )


def test_the_command(tmp_path):
    for name, seed in (("d", 1), ("t", 2)):
        write(tmp_path, name, records(seed, 60))
    given = ["dev=d", "references=d.text", "test=t", "test_references=t.text", "metric=wer"]
    given += ["samples=100", "html=report.html"]
    outcome = run_command("tune", *given, "groups=-", folder=tmp_path).check()
    assert "these lists were sorted by 0.2 good + 1 own" in outcome.out + outcome.err
    assert "d, 5 folds" in outcome.out
    assert "Now try: " in outcome.err
    names, _ = read_weights(tmp_path / "tuned.weights.txt")
    assert sorted(names.names(range(2))) == ["good", "own"]
    page = (tmp_path / "report.html").read_text()
    assert "d, 5 folds" in page
    assert "<svg" in page or "data:image/svg" in page
    # A file says the same.
    (tmp_path / "spk").write_text(
        (tmp_path / "d.spk").read_text() + (tmp_path / "t.spk").read_text()
    )
    again = run_command("tune", *given, "groups=spk", folder=tmp_path).check()
    assert again.out == outcome.out
    # So do the lists: they have references, too.
    given = [one for one in given if "references" not in one]
    assert run_command("tune", *given, "groups=-", folder=tmp_path).check().out == outcome.out


class Page(HTMLParser):
    """What a page asks for, and which elements are open or closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        asking = {"src", "href", "data", "action", "srcset", "onload", "onerror"}
        self.asked += [value or "" for name, value in attributes if name in asking]
        self.open += [] if tag in ("meta", "img", "link", "br", "hr", "input") else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    """Names come from files of others; in Chromium (PyQt6-WebEngine) it was looked at by hand."""
    hostile = "<script>alert(1)</script>&amp;'\""
    some = records(1, 20)
    for one in some:
        for hypothesis in one["hypotheses"]:
            hypothesis["features"] = dict(zip("f<", hypothesis["features"].values(), strict=True))
    tuned = tune_lists(as_set(hostile, some, (Vocabulary(), Vocabulary())), metric=WordErrorRate())
    write_tuned(tmp_path / "page.html", tuned)
    page = Page()
    page.feed((tmp_path / "page.html").read_text("utf-8"))
    page.close()
    assert page.open == []
    assert "script" not in "".join(page.asked)
    icon, asked = page.asked
    head, _, picture = asked.partition(",")
    assert (icon, head) == ("data:,", "data:image/svg+xml;base64")
    assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    assert any(hostile in text for text in page.texts)


def test_few_lists_have_few_folds() -> None:
    for lists, line in ((3, "d, 3 folds"), (1, "d")):
        dev = as_set("d", records(1, lists), (Vocabulary(), Vocabulary()))
        tuned = tune_lists(dev, metric=WordErrorRate(), samples=20)
        assert tuned.judged[-1].what == line
        assert "no more groups" in tuned.text()


def test_weights_that_are_as_good_as_before_are_not_better() -> None:
    """With the first feature below 0.5 the second hypothesis comes first, as it should."""
    some = [
        {
            "id": f"s-{number}",
            "references": ["a b"],
            "hypotheses": [
                {"text": "a x", "features": {"f": 1.0, "g": 0.0}},
                {"text": "a b", "features": {"f": 0.0, "g": 0.5}},
            ],
        }
        for number in range(4)
    ]
    dev = as_set("d", some, (Vocabulary(), Vocabulary()), groups=False)
    tuned = tune_lists(dev, metric=WordErrorRate(), samples=20, folds=0)
    f, g = tuned.ranges
    assert (tuned.judged[0].before, tuned.judged[0].after) == (50, 0)
    assert f.gaining == pytest.approx((-np.inf, 0.5 * g.weight))
    assert "-0.0" not in tuned.text()


def test_what_is_refused(tmp_path):
    write(tmp_path, "d", records(1, 20))
    write(tmp_path, "t", records(1, 20)[5:])
    (tmp_path / "part.text").write_text("".join((tmp_path / "d.text").open().readlines()[1:]))
    (tmp_path / "d.start").write_text("good 1\n")
    (tmp_path / "d.column").write_text("1\n" * 100)
    (tmp_path / "other").write_text("f 1\n")
    (tmp_path / "empty").write_text("".join(f"{one['id']}\n" for one in records(1, 20)))
    write(tmp_path, "t2", records(2, 20))
    write(tmp_path, "single", records(2, 20, k=1))
    for name in ("numbers", "numbers2"):
        # Ids that are numbers of lines say nothing of whose they are.
        some = [{**one, "id": str(number)} for number, one in enumerate(records(1, 20))]
        write(tmp_path, name, some)
    dev = ["dev=d", "references=d.text", "metric=wer", "folds=0", "samples=20"]
    for more, word in (
        (["test=d", "test_references=t.text"], "test"),
        (["test=t", "test_references=d.text"], "test"),
        (["test=t", "test_references=t.text"], "s5-1-5"),
        (["test_references=t.text"], "test_references"),
        (["references=part.text"], "s0-1-0"),
        (["groups=+"], "groups"),
        (["folds=1"], "folds"),
        (["tuner.iterations=3"], "tuner.iterations"),
        (["weights=d.text"], "weights"),
        (["groups=d.spk", "weights=d.spk"], "weights"),
        (["columns.c=d.column", "html=d.column"], "html"),
        (["start=d.start", "weights=d.start"], "weights"),
        (["unlisted=no"], "unlisted"),
        (["columns.c=d.column", "test=t2"], "test_columns.c"),
        (["test_columns.c=d.column"], "columns.c"),
        (["start=other"], "other"),
        (["references=empty"], "no word"),
        (["references=d"], "JSON"),
        (["dev=single", "references=null"], "one hypothesis"),
        (["dev=numbers", "references=null", "test=numbers2"], "all of them"),
    ):
        given = [o for o in dev if o.partition("=")[0] not in {m.partition("=")[0] for m in more}]
        outcome = run_command("tune", *given, *more, folder=tmp_path)
        assert outcome.code == 1
        assert word in outcome.err
    same = [as_set("d", records(1, 20), (Vocabulary(), Vocabulary()))] * 2
    with pytest.raises(InputError, match="s0-1-0"):
        tune_lists(*same, metric=WordErrorRate(), folds=0)


def run_tune(folder: Path, *options: str) -> str:
    """Tune without folds; return what is said beside the report."""
    outcome = run_command("tune", "folds=0", "samples=20", *options, folder=folder)
    assert outcome.code == 0, outcome.err
    return outcome.err


def test_every_metric_is_tuned_from_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, "d", records(1, 20))
    for metric in ("nakov", "chrf", "ter", "cer", "mix"):
        more = ["metric.weights={bleu:0.5,ter:0.5}"] if metric == "mix" else []
        run_tune(tmp_path, "dev=d", "references=d.text", f"metric={metric}", *more)


def test_columns_of_several_sets_and_of_new_lists(tmp_path: Path) -> None:
    for name, seed in (("d", 1), ("t", 2)):
        write(tmp_path, name, records(seed, 20))
        (tmp_path / f"{name}.column").write_text("".join(f"{i % 7}\n" for i in range(100)))
    err = run_tune(
        *(tmp_path, "dev=d", "references=d.text", "test=t", "test_references=t.text"),
        *("metric=wer", "columns.comet=d.column", "test_columns.comet=t.column", "scale.good=-1"),
    )
    assert "columns.comet=NEW_COLUMN scale.good=-1" in err
    weights = "weights=tuned.weights.txt"
    more = ["columns.comet=t.column", "scale.good=-1", "output=o"]
    assert run_command("rerank", weights, "input=t", *more, folder=tmp_path).code == 0


@pytest.mark.parametrize("ids", ["s{}", "{}", "number"])
def test_sentences_without_a_list_are_deletions(tmp_path: Path, ids: str) -> None:
    """As scorers of speech have it; `unlisted=leave` leaves them out."""
    some = records(1, 20)
    for number, one in enumerate(some):
        one["id"] = number if ids == "number" else ids.format(number)
    some[7]["hypotheses"] = []
    write(tmp_path, "d", some)
    if ids == "s{}":
        with (tmp_path / "d.text").open("a") as file:
            file.write("other of no list\n")
    if ids == "number":
        texts = [one["references"][0] for one in some]
        (tmp_path / "d.text").write_text("\n".join(texts) + "\n")
    wrong = sum(r["hypotheses"][0]["text"].split().count("x") for r in some if r["hypotheses"])
    bare = 6 + 3 * (ids == "s{}")
    for more, before in (
        ((), (wrong + bare) / (19 * 6 + bare)),
        (("unlisted=leave",), wrong / (19 * 6)),
    ):
        given = ["dev=d", "references=d.text", "metric=wer", "folds=2", "samples=20", *more]
        outcome = run_command("tune", *given, folder=tmp_path).check()
        assert f"{1 + (ids == 's{}')} of {20 + (ids == 's{}')} sentences" in outcome.err
        rows = [line.split() for line in outcome.out.splitlines() if line.startswith("d")]
        assert rows[0][2] == f"{100 * before:.3f}"
    own = run_command("tune", "dev=d", *given[2:], folder=tmp_path).check()
    assert own.out == outcome.out


def test_text_that_is_split_in_other_ways_is_told(tmp_path: Path) -> None:
    some = records(1, 20)
    for one in some:
        for hypothesis in one["hypotheses"]:
            hypothesis["text"] = hypothesis["text"].replace(" ", "@@ ")
    write(tmp_path, "d", some)
    given = [tmp_path, "dev=d", "references=d.text", "metric=wer"]
    assert "d" in next(line for line in run_tune(*given).splitlines() if "warning" in line)
    assert "warning" not in run_tune(*given, "metric.filters=[bpe]")


def test_sets_with_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "d", records(seed, 20))
    given = ["dev=a/d", "test=b/d", "metric=wer", "folds=0", "samples=20"]
    out = run_command("tune", *given, folder=tmp_path).check().out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["a/d", "b/d"], out


@pytest.mark.skipif(not SPEECH.exists(), reason="needs ../shared")
def test_lists_of_a_speech_recogniser(tmp_path):
    """The errors published with the lists, and no more than an exact search has found in them."""
    with tarfile.open(SPEECH / "dev_clean.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    options = ["dev=dev_clean", "references=dev_clean/text", "metric=wer", "folds=0", "samples=20"]
    outcome = run_command("tune", *options, folder=tmp_path).check()
    assert "sorted by 0.6 decoder + 0.4 ctc + 0.6 lm" in outcome.out
    row = next(line.split() for line in outcome.out.splitlines() if line.startswith("dev_clean"))
    assert row[2] == f"{100 * 925 / 54402:.3f}"
    assert float(row[3]) <= 1.650
