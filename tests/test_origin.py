"""Weights know the model that they belong to, and are refused by another one."""

import gzip
import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import MODEL, run_command
from hypothesis import example, given
from hypothesis import strategies as st
from small_lists import ON_LISTS, put
from test_read_files import LISTS

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import Origin, Part, read_origin, read_weights, save_weights
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.models import BitextModel, load_model

EXAMPLE = example_folder()
DIGESTS = [f"{i:016x}" for i in range(4)]

part = st.builds(Part, st.text(min_size=1), st.sampled_from(DIGESTS))
origins = st.one_of(
    st.builds(Origin.of_model, part, part, part, st.text(min_size=1)),
    st.builds(
        Origin.of_lists,
        st.lists(st.text(min_size=1), min_size=1),
        st.none() | st.lists(st.text(min_size=1)),
    ),
)


# The comments


@given(origin=origins)
@example(
    origin=Origin.of_model(Part(" "), Part("\r\n", DIGESTS[1]), Part("\u2028", DIGESTS[2]), "\t")
)
@example(origin=Origin.of_lists([" "]))
@example(origin=Origin.of_lists(["a"], ["-"]))
@example(origin=Origin.of_lists(["\0"], ["\0", "a\0b"]))
@example(origin=Origin.of_lists(["a"], ["%20", "\u2028 \x1c", "[0123456789abcdef]"]))
def test_what_is_written_is_read(origin, tmp_path_factory):
    path = tmp_path_factory.mktemp("origin") / "w.gz"
    weights = Weights(["LM"])
    weights.set(["LM", "x"], [0.5, -1.0])
    assert save_weights(path, weights, origin) == 2
    found = read_origin(path)
    assert (found.is_model, found.dense) == (origin.is_model, origin.dense)
    assert found.digests() == origin.digests()
    assert found.difference(origin) is None
    for kind, (name, _) in origin.parts.items():
        assert found.parts[kind].name == (" ".join(name.replace("\0", " ").split()) or "-")
    # Whoever reads weights sees these alone.
    names, values = read_weights(path)
    assert (names.names(range(2)), values.tolist()) == (["LM", "x"], [0.5, -1.0])
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    assert [line for line in lines if not line.startswith("#")] == ["LM 0.5", "x -1.0", ""]


def test_people_can_read_it(tmp_path):
    parts = Part("a (de-en)", DIGESTS[1]), Part("lm.gz (de-en)", DIGESTS[2])
    own = Origin.of_model(*parts, Part("dense rule_id", DIGESTS[3]), "de-en lowercase")
    weights = Weights()
    weights.set(["x"], [1.0])
    save_weights(tmp_path / "w", weights, own)
    assert (tmp_path / "w").read_text() == (
        "# torchtune_smt weights, which belong to\n"
        "# grammar: a (de-en) [0000000000000001]\n"
        "# language model: lm.gz (de-en) [0000000000000002]\n"
        "# features: dense rule_id [0000000000000003]\n"
        "# text: de-en lowercase\n"
        "x 1.0\n"
    )
    assert Origin.of_lists(["a.gz", "b.gz"]).difference(own) is None


TITLE = "# torchtune_smt weights, which belong to\n"
WHOLE = f"# grammar: a [{DIGESTS[0]}]\n# language model: b\n# features: c\n# text: d\n"
NOTHING = ["", "x 1\n", "# a comment\nx 1\n", "#\n# b\n\nx 1\n# late\n"]
NOT_WHOLE = [
    TITLE,
    TITLE + WHOLE.replace("text", "texts"),
    TITLE + WHOLE + WHOLE,
    TITLE + WHOLE + "# k-best lists: a\n",
    TITLE + WHOLE.replace("# features", "features"),
]


def test_comments_of_others_and_what_is_not_whole(tmp_path):
    for text in NOTHING:
        (tmp_path / "w").write_text(text)
        assert read_origin(tmp_path / "w") is None
    for text in NOT_WHOLE:
        (tmp_path / "w").write_text(text + "x 1\n")
        with pytest.raises(InputError, match="w: does not name all that the weights belong to"):
            read_origin(tmp_path / "w")
    (tmp_path / "w").write_text(f"# mine\n\n{TITLE}{WHOLE}# better than: before\n#\nx 1\n")
    origin = read_origin(tmp_path / "w")
    assert origin is not None and origin.text == "d"
    assert origin.parts["grammar"] == Part("a", DIGESTS[0])


# Digests


def model_digests(folder):
    model = load_model(folder)
    return model.grammar_part.digest, model.language_model_part.digest


def test_digests_of_a_model_folder(tmp_path):
    """Of its grammar and its language model; None, where they are those of the first."""
    bitext = read_corpus(EXAMPLE / "dev.de", [EXAMPLE / "dev.en.0"])
    less = read_corpus(EXAMPLE / "test.de", [EXAMPLE / "test.en.0"])
    first = BitextModel("", iterations=1, order=2, folds=0, discount_fallback=(0.5, 1.0, 1.5))
    alignment = {"alignment_file": str(tmp_path / "0" / "alignment.gz")}
    found = []
    for corpus, changes, same in (
        (bitext, {}, (True, True)),
        (bitext, {"folds": 2}, (True, True)),
        (bitext, {"order": 3}, (True, False)),
        (bitext, {"table_limit": 2}, (False, True)),
        (bitext, {"iterations": 2}, (False, True)),
        # The alignment that was computed is another one than the same from a file, to a digest.
        (bitext, alignment, (False, True)),
        (less, {}, (False, False)),
    ):
        folder = tmp_path / str(len(found))
        replace(first, folder=str(folder), **changes).build(corpus, lambda step: None)
        found.append(model_digests(folder))
        assert tuple(a == b for a, b in zip(found[-1], found[0], strict=True)) == same


# The commands

POP_LIMIT = "decoder.pop_limit=10"


def translate(place, weights, *options, refused=False):
    """Translate the test set and return what is printed, or why nothing is."""
    arguments = [f"weights={weights}", f"input={EXAMPLE / 'test.de'}", *options]
    outcome = run_command("translate", *arguments, folder=place)
    if not refused:
        return outcome.check().out
    outcome.refused()
    assert outcome.out == ""
    return outcome.err


refused = partial(translate, refused=True)


@pytest.fixture
def moved(run, tmp_path):
    """The weights of a run, in a folder without one."""
    return Path(shutil.copy(run.weights, tmp_path / "moved.txt.gz"))


def expected(run):
    return (run.folder / "test.translations.txt").read_text()


def test_the_weights_of_a_run_say_what_they_belong_to(run):
    origin = read_origin(run.weights)
    assert origin is not None and origin.is_model
    folder = run.place / "outputs" / "models" / "example"
    assert tuple(origin.digests().values())[:2] == model_digests(folder)
    assert [part.name for part in origin.parts.values()] == [
        "outputs/models/example (de-en)",
        "outputs/models/example (de-en)",
        "dense rule_id rule_shape source_ngram",
        "de-en normalize tokenize lowercase",
    ]


def test_weights_that_were_moved_or_are_of_another_tool(run, moved, tmp_path):
    assert f"{moved}: lies in no run's folder" in refused(run.place, moved)
    # Settings that do not say which model is meant are not enough.
    assert "lies in no run's folder" in refused(run.place, moved, "features=sparse", *MODEL)
    bare = tmp_path / "bare.txt"
    lines = [line for line in read_lines(run.weights) if not line.startswith("#")]
    bare.write_text("\n".join(lines))
    said = f"{bare}: lies in no run's folder, which would say how to open the model"
    assert said in refused(run.place, bare)
    for weights, which in (
        (moved, ["data=example", *MODEL]),
        # The same built again elsewhere is the same.
        (moved, ["model.folder=outputs/models/again", *MODEL]),
        (bare, ["data=example", "model=hiero", *MODEL]),
    ):
        assert translate(run.place, weights, *which, POP_LIMIT) == expected(run)
    # A run's folder says which model is meant.
    shutil.copytree(run.folder / ".hydra", tmp_path / ".hydra")
    shutil.copy(run.folder / "config.yaml", tmp_path)
    assert translate(run.place, bare) == expected(run)


def test_weights_of_another_model_or_other_features(run, moved):
    other = ["model.folder=outputs/models/other", *MODEL[1:], "model.order=2"]
    lm = r"the language model outputs/models/{} \(de-en\) \[[0-9a-f]{{16}}\]"
    rule_id = "features.templates=[{_target_:torchtune_smt.features.RuleId}]"
    for weights, options, pattern in (
        (moved, other, f"belongs to {lm.format('example')}, and not to {lm.format('other')}; give"),
        (run.weights, other, "and not to the language model .*init.file"),
        (run.weights, ["features=dense"], r"the features dense rule_id .* and not to .* dense \["),
        (run.weights, [rule_id], r"and not to the features dense rule_id \["),
    ):
        assert re.search(pattern, refused(run.place, weights, *options))


def test_moved_weights_of_text_that_was_prepared_in_another_way(run, tmp_path):
    lines, options = read_lines(run.weights), ["data=example", *MODEL]
    for own, here, typed in (
        (
            "de-en normalize tokenize",
            "# text: de-en normalize tokenize lowercase",
            "lowercase=true",
        ),
        ("en-de normalize", "# text: de-en normalize tokenize lowercase", ""),
    ):
        assert lines.count(here) == 1
        other = put(tmp_path, {"w": [f"# text: {own}" if line == here else line for line in lines]})
        said = f"w: belongs to text that is prepared as {own}, and not as {here[8:]}; say how"
        assert said in refused(run.place, other, *options)
        if typed:
            found = translate(run.place, other, *options, f"data.{typed}", POP_LIMIT)
            assert found == expected(run)
        else:
            assert said in refused(run.place, other, *options, "data.source_language=de")


def test_weights_of_lists(run, tmp_path):
    put(tmp_path, {"lists": LISTS, "dev.de": ["ein guter tag", "danke sehr"]})
    put(tmp_path, {"dev.en": ["a good day", "thank you"]})
    options = [*ON_LISTS, "data.dev=[dev.de,dev.en]", "tuner=pro", "decoder.dev=lists"]
    first = [*options, "init=zero", "hydra.run.dir=first"]
    run_command("train", *first, folder=tmp_path).check()
    weights = tmp_path / "first" / "weights.txt.gz"
    comments = [TITLE.strip(), "# k-best lists: lists", "# dense features: LM TM"]
    assert [line for line in read_lines(weights) if line[0] == "#"] == comments
    # Those of a model are applied to lists, too; and lists may start from them.
    with_model, tuned = tmp_path / "with_model", Weights()
    tuned.set(["LM"], [0.5])
    save_weights(with_model, tuned, read_origin(run.weights))
    for path in (weights, with_model):
        reranked = run_command("rerank", f"weights={path}", "input=lists", folder=tmp_path)
        assert reranked.check().out == "a good day\nthank you\n"
    # New lists are read as these were.
    put(tmp_path, {"costs": LISTS.replace("LM=-", "LM="), "more": "5\n4\n3\n2\n"})
    more = ["decoder.scale.LM=-1", "decoder.columns.dev.more=more", "decoder.missing=0.5"]
    third = [*options, "decoder.dev=costs", *more, "init=zero", "hydra.run.dir=third"]
    last = run_command("train", *third, folder=tmp_path).check().out.splitlines()[-1]
    _, rerank, *arguments = shlex.split(last.removeprefix("Now try: "))
    assert arguments[1:] == ["input=costs", "missing=0.5", "columns.more=more", "scale.LM=-1"]
    found = run_command(rerank, *arguments, folder=tmp_path).check().out
    assert found == (tmp_path / "third" / "dev.translations.txt").read_text()
    assert "translates nothing" in refused(tmp_path, weights)
    moved = Path(shutil.copy(weights, tmp_path / "moved.gz"))
    assert "translates nothing" in refused(run.place, moved, "data=example", *MODEL)
    start = [*options, "init=file", f"init.file={with_model}", "hydra.run.dir=second"]
    outcome = run_command("train", *start, folder=tmp_path).check()
    assert "and not to the k-best lists lists; tuning starts from it" in outcome.out
