"""Weights know the model that they belong to, and are refused by another one."""

from __future__ import annotations

import gzip
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from commands import MODEL, SMALL, Run, run_command, train, train_until_saved
from hypothesis import example, given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import (
    Origin,
    Part,
    digest_of,
    read_origin,
    read_weights,
    save_weights,
)
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.grammar import load_grammar, write_grammar
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
@example(origin=Origin.of_lists(["a"], []))
@example(origin=Origin.of_lists(["a"], ["-"]))
@example(origin=Origin.of_lists(["\0"], ["\0", "a\0b"]))
@example(origin=Origin.of_model(Part("\0"), Part("a\0"), Part("b"), "c"))
@example(origin=Origin.of_lists(["a"], ["%20", "\u2028 \x1c", "[0123456789abcdef]"]))
def test_what_is_written_is_read(origin: Origin, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("origin") / "w.gz"
    weights = Weights(["LM"])
    weights.set(["LM", "x"], [0.5, -1.0])
    assert save_weights(path, weights, origin) == 2
    found = read_origin(path)
    assert found is not None
    assert found.is_model == origin.is_model
    assert found.digests() == origin.digests()
    assert found.difference(origin) is None
    assert found.dense == origin.dense
    for kind, (name, _) in origin.parts.items():
        assert found.parts[kind].name == (" ".join(name.replace("\0", " ").split()) or "-")
    # Whoever reads weights sees these alone.
    names, values = read_weights(path)
    assert (names.names(range(2)), values.tolist()) == (["LM", "x"], [0.5, -1.0])
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    assert [line for line in lines if not line.startswith("#")] == ["LM 0.5", "x -1.0", ""]


def test_people_can_read_it(tmp_path: Path) -> None:
    origin = Origin.of_model(
        Part("models/a (de-en)", DIGESTS[1]),
        Part("lm.gz (de-en)", DIGESTS[2]),
        Part("dense rule_id", DIGESTS[3]),
        "de-en lowercase",
    )
    weights = Weights()
    weights.set(["x"], [1.0])
    save_weights(tmp_path / "w", weights, origin)
    assert (tmp_path / "w").read_text() == (
        "# torchtune_smt weights, which belong to\n"
        "# grammar: models/a (de-en) [0000000000000001]\n"
        "# language model: lm.gz (de-en) [0000000000000002]\n"
        "# features: dense rule_id [0000000000000003]\n"
        "# text: de-en lowercase\n"
        "x 1.0\n"
    )
    other = Origin.of_model(
        Part("models/a (de-en)", DIGESTS[1]),
        Part("big.gz (de-en)", DIGESTS[1]),
        Part("dense rule_id", DIGESTS[3]),
        "de-en",
    )
    assert origin.difference(other) == (
        "the language model lm.gz (de-en) [0000000000000002], and not to "
        "the language model big.gz (de-en) [0000000000000001]"
    )
    lists = Origin.of_lists(["a.gz", "b.gz"])
    assert str(origin.difference(lists)).endswith("and not to the k-best lists a.gz b.gz")
    assert lists.difference(origin) is None


@pytest.mark.parametrize("text", ["", "x 1\n", "# a comment\nx 1\n", "#\n# b\n\nx 1\n# late\n"])
def test_files_of_other_tools_say_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "w").write_text(text)
    assert read_origin(tmp_path / "w") is None


TITLE = "# torchtune_smt weights, which belong to\n"
WHOLE = f"# grammar: a [{DIGESTS[0]}]\n# language model: b\n# features: c\n# text: d\n"


def test_comments_of_others_around_it(tmp_path: Path) -> None:
    (tmp_path / "w").write_text(f"# mine\n\n{TITLE}{WHOLE}# better than: before\n#\nx 1\n")
    origin = read_origin(tmp_path / "w")
    assert origin is not None
    assert origin.parts["grammar"] == Part("a", DIGESTS[0])
    assert origin.text == "d"


@pytest.mark.parametrize(
    "text",
    [
        TITLE,
        TITLE + WHOLE.partition("\n")[2],
        TITLE + WHOLE.replace("text", "texts"),
        TITLE + WHOLE + WHOLE,
        TITLE + WHOLE + "# k-best lists: a\n",
        TITLE + WHOLE.replace("# features", "features"),
    ],
)
def test_comments_that_are_not_whole(tmp_path: Path, text: str) -> None:
    (tmp_path / "w").write_text(text + "x 1\n")
    with pytest.raises(InputError, match="w: does not name all that the weights belong to"):
        read_origin(tmp_path / "w")


def test_weights_that_are_no_file(tmp_path: Path) -> None:
    for path in ("/dev/zero", "/dev/null"):
        with pytest.raises(InputError, match="is no plain file"):
            read_origin(path)
    with pytest.raises(InputError, match="is a folder"):
        read_origin(tmp_path)


# Digests


def model_digests(folder: Path) -> tuple[str, str]:
    model = load_model(folder)
    return model.grammar_part.digest, model.language_model_part.digest


def test_digests_of_a_model_folder(tmp_path: Path) -> None:
    bitext = read_corpus(EXAMPLE / "dev.de", [EXAMPLE / "dev.en.0"])
    first = BitextModel("", iterations=1, order=2, folds=0, discount_fallback=(0.5, 1.0, 1.5))

    def digests(name: str, corpus=bitext, **changes: object) -> tuple[str, str]:
        given = replace(first, folder=str(tmp_path / name), **changes)
        given.build(corpus, lambda step: None)
        return model_digests(tmp_path / name)

    one = digests("one")
    assert digests("two") == one
    assert digests("two", folds=2) == one
    assert digests("three", order=3) == (one[0], digests("three", order=3)[1])
    assert digests("three", order=3)[1] != one[1]
    for name, value in (("table_limit", 3), ("max_symbols", 4), ("iterations", 2)):
        other = digests("four", **{name: value})
        assert (other[0] != one[0], other[1]) == (True, one[1])
    # The alignment that was computed is another one than the same from a file, to a digest alone.
    alignment = str(tmp_path / "one" / "alignment.gz")
    given_alignment = digests("five", alignment_file=alignment)
    assert given_alignment[1] == one[1]
    assert digests("five", alignment_file=alignment, iterations=3) == given_alignment
    less = read_corpus(EXAMPLE / "test.de", [EXAMPLE / "test.en.0"])
    other = digests("six", less)
    assert other[0] != one[0] and other[1] != one[1]


def test_digest_of_what_json_writes() -> None:
    one = digest_of({"a": [1, None], "b": "x"})
    assert one == digest_of({"b": "x", "a": [1, None]})
    assert one != digest_of({"a": [1, None], "b": "y"})
    assert re.fullmatch("[0-9a-f]{16}", one)


# The commands


def translate(place: Path, weights: Path, *options: str) -> str:
    """Translate the test set and return what is printed."""
    arguments = [f"weights={weights}", f"input={EXAMPLE / 'test.de'}", *options]
    return run_command("translate", *arguments, folder=place).check().out


def refused(place: Path, weights: Path, *options: str) -> str:
    """Check that nothing is translated and return the error."""
    arguments = [f"weights={weights}", f"input={EXAMPLE / 'test.de'}", *options]
    outcome = run_command("translate", *arguments, folder=place)
    assert (outcome.code, outcome.out) == (1, "")
    # Before it, there may be what is told of a model that is built.
    error = outcome.err.splitlines()[-1]
    assert error.startswith("error: ")
    return error


@pytest.fixture
def moved(run: Run, tmp_path: Path) -> Path:
    """The weights of a run, in a folder without one."""
    return Path(shutil.copy(run.weights, tmp_path / "moved.txt.gz"))


@pytest.fixture
def bare(run: Run, tmp_path: Path) -> Path:
    """The same, as another tool writes them."""
    lines = [line for line in read_lines(run.weights) if not line.startswith("#")]
    (tmp_path / "bare.txt").write_text("\n".join(lines))
    return tmp_path / "bare.txt"


POP_LIMIT = "decoder.pop_limit=10"


def expected(run: Run) -> str:
    return (run.folder / "test.translations.txt").read_text()


def test_the_weights_of_a_run_say_what_they_belong_to(run: Run) -> None:
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


def test_weights_that_were_moved(run: Run, moved: Path) -> None:
    error = refused(run.place, moved)
    assert f"{moved}: lies in no run's folder" in error
    assert "outputs/models/example (de-en) [" in error
    assert "data=... and model=..." in error
    # Settings that do not say which model is meant are not enough.
    assert "lies in no run's folder" in refused(run.place, moved, "features=sparse", *MODEL)
    assert translate(run.place, moved, "data=example", *MODEL, POP_LIMIT) == expected(run)
    folder = "model.folder=outputs/models/example"
    assert translate(run.place, moved, folder, *MODEL, POP_LIMIT) == expected(run)


def test_weights_of_another_tool(run: Run, bare: Path) -> None:
    error = refused(run.place, bare)
    assert f"{bare}: does not say which model the weights belong to" in error
    assert "data=NAME model=hiero" in error
    assert "model.grammar=FILE" in error
    model = ["data=example", "model=hiero", *MODEL, POP_LIMIT]
    assert translate(run.place, bare, *model) == expected(run)
    # A run's folder says which model is meant.
    shutil.copytree(run.folder / ".hydra", bare.parent / ".hydra")
    shutil.copy(run.folder / "config.yaml", bare.parent)
    assert translate(run.place, bare) == expected(run)


def test_weights_of_another_model(run: Run, moved: Path, tmp_path: Path) -> None:
    other = ["model.folder=outputs/models/other", *MODEL[1:]]
    for weights in (moved, run.weights):
        error = refused(run.place, weights, *other, "model.order=2")
        theirs = r"the language model outputs/models/example \(de-en\) \[[0-9a-f]{16}\]"
        ours = r"the language model outputs/models/other \(de-en\) \[[0-9a-f]{16}\]"
        assert re.search(f"belongs to {theirs}, and not to {ours}; give its own", error)
        assert "init.file" in error
    # The same built again elsewhere is the same.
    again = ["model.folder=outputs/models/again", *MODEL, POP_LIMIT]
    assert translate(run.place, moved, *again) == expected(run)


def test_weights_of_other_features(run: Run, moved: Path) -> None:
    error = refused(run.place, run.weights, "features=dense")
    assert "the features dense rule_id rule_shape source_ngram [" in error
    assert "and not to the features dense [" in error
    templates = "features.templates=[{_target_:torchtune_smt.features.RuleId}]"
    assert "and not to the features dense rule_id [" in refused(run.place, run.weights, templates)


def test_weights_of_text_that_was_prepared_in_another_way(run: Run, tmp_path: Path) -> None:
    raw = train(run.place, "cased", "data.lowercase=false")
    moved = Path(shutil.copy(raw.weights, tmp_path))
    # The bitext is another one, too.
    folder = ["model.folder=outputs/models/example", *MODEL]
    error = refused(run.place, moved, *folder)
    steps = "de-en normalize tokenize"
    assert f"belongs to text that is prepared as {steps}, and not as {steps} lowercase; " in error
    translate(run.place, moved, *folder, "data.lowercase=false")


def test_weights_of_files(run: Run, tmp_path: Path) -> None:
    model = run.place / "outputs" / "models" / "example"
    write_grammar(tmp_path / "rules.gz", load_grammar(model / "grammar"))
    shutil.copy(model / "lm.arpa.gz", tmp_path)
    files = [
        "model=files",
        f"model.grammar={tmp_path / 'rules.gz'}",
        f"model.language_model={tmp_path / 'lm.arpa.gz'}",
    ]
    small = ["tuner.epochs=1", "tuner.sentences=10", "decoder.k=10", "decoder.pop_limit=5"]
    arguments = [*small, *files, "hydra.run.dir=of_files", "data.dev=test"]
    own = Run(run.place, "of_files", run_command("train", *arguments, folder=run.place).check())
    moved = Path(shutil.copy(own.weights, tmp_path))
    assert translate(run.place, moved, *files, "decoder.pop_limit=5") == expected(own)
    lm = gzip.decompress((tmp_path / "lm.arpa.gz").read_bytes())
    (tmp_path / "lm.arpa.gz").write_bytes(gzip.compress(lm.replace(b"-1", b"-2", 1)))
    for weights, options in ((moved, files), (own.weights, [])):
        error = refused(run.place, weights, *options)
        assert error.count("lm.arpa.gz (de-en) [") == 2
        assert "rules.gz" not in error


def test_tuning_that_starts_from_weights_of_another_model(run: Run, tmp_path: Path) -> None:
    start = ["init=file", f"init.file={run.weights}"]
    same = train(run.place, "same_start", *start)
    assert "tuning starts from it" not in same.outcome.out
    other = train(run.place, "other_start", *start, "features=dense")
    notice = re.search(r"^(.*): belongs to the features (.*) \[.*\]", other.outcome.out, re.M)
    assert notice is not None
    assert notice[1] == str(run.weights)
    assert "and not to the features dense [" in other.outcome.out


LISTS = """\
0 ||| a good day ||| LM=-1 TM=-2 ||| -3
0 ||| a day good ||| LM=-2 TM=-1 ||| -3
1 ||| thank you ||| LM=-1 TM=-1 ||| -2
1 ||| you thank ||| LM=-3 TM=-1 ||| -4
"""


def test_weights_of_lists(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lists").write_text(LISTS)
    (tmp_path / "dev.de").write_text("ein guter tag\ndanke sehr\n")
    (tmp_path / "dev.en").write_text("a good day\nthank you\n")
    data = ["data=files", "data.name=l", "data.source_language=de", "data.target_language=en"]
    options = ["decoder=kbest_files", "decoder.dev=lists", "init=zero", "tuner=pro"]
    files = ["data.train=null", "data.dev=[dev.de,dev.en]", "hydra.run.dir=lists_run"]
    run_command("train", *data, *files, *options, folder=tmp_path).check()
    weights = tmp_path / "lists_run" / "weights.txt.gz"
    comments = [TITLE.strip(), "# k-best lists: lists", "# dense features: LM TM"]
    assert [line for line in read_lines(weights) if line[0] == "#"] == comments
    moved = Path(shutil.copy(weights, tmp_path / "moved.gz"))
    for path in (weights, moved):
        reranked = run_command("rerank", f"weights={path}", "input=lists", folder=tmp_path)
        assert reranked.check().out == "a good day\nthank you\n"
        assert "translates nothing" in refused(tmp_path, path)
    assert "translates nothing" in refused(run.place, moved, "data=example", *MODEL)
    # Those of a model are applied to lists, too; and lists may start from them.
    with_model = tmp_path / "with_model"
    tuned = Weights()
    tuned.set(["LM"], [0.5])
    save_weights(with_model, tuned, read_origin(run.weights))
    outcome = run_command("rerank", f"weights={with_model}", "input=lists", folder=tmp_path)
    assert outcome.check().out == "a good day\nthank you\n"
    start = ["init=file", f"init.file={with_model}", "hydra.run.dir=second", *options[:2]]
    outcome = run_command("train", *data, *files[:2], *start, "tuner=pro", folder=tmp_path).check()
    assert "and not to the k-best lists lists; tuning starts from it" in outcome.out


def test_a_model_that_was_replaced_is_not_tuned_on(run: Run, tmp_path: Path) -> None:
    model = run.place / "outputs" / "models" / "example"
    write_grammar(tmp_path / "rules.gz", load_grammar(model / "grammar"))
    shutil.copy(model / "lm.arpa.gz", tmp_path)
    files = ["model=files", "model.grammar=rules.gz", "model.language_model=lm.arpa.gz"]
    train_until_saved(tmp_path, *SMALL, *files, "hydra.run.dir=stopped", "data.test=null")
    lm = gzip.decompress((tmp_path / "lm.arpa.gz").read_bytes())
    (tmp_path / "lm.arpa.gz").write_bytes(gzip.compress(lm.replace(b"-1", b"-2", 1)))
    outcome = run_command("train", "resume=stopped", folder=tmp_path)
    assert outcome.code == 1
    assert re.search(
        "is of a run with language model = [0-9a-f]{16}, and now it is [0-9a-f]{16}; ", outcome.err
    )
