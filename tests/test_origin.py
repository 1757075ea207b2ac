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
from test_read_files import LISTS

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
    def origin(language_model: str, text: str) -> Origin:
        parts = Part("a (de-en)", DIGESTS[1]), Part(language_model, DIGESTS[2])
        return Origin.of_model(*parts, Part("dense rule_id", DIGESTS[3]), text)

    own = origin("lm.gz (de-en)", "de-en lowercase")
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
    other = replace(own, parts=own.parts | {"language model": Part("big.gz", DIGESTS[1])})
    assert own.difference(other) == (
        "the language model lm.gz (de-en) [0000000000000002], and not to "
        "the language model big.gz [0000000000000001]"
    )
    lists = Origin.of_lists(["a.gz", "b.gz"])
    assert str(own.difference(lists)).endswith("and not to the k-best lists a.gz b.gz")
    assert lists.difference(own) is None


TITLE = "# torchtune_smt weights, which belong to\n"
WHOLE = f"# grammar: a [{DIGESTS[0]}]\n# language model: b\n# features: c\n# text: d\n"
NOTHING = ["", "x 1\n", "# a comment\nx 1\n", "#\n# b\n\nx 1\n# late\n"]
NOT_WHOLE = [
    TITLE,
    TITLE + WHOLE.partition("\n")[2],
    TITLE + WHOLE.replace("text", "texts"),
    TITLE + WHOLE + WHOLE,
    TITLE + WHOLE + "# k-best lists: a\n",
    TITLE + WHOLE.replace("# features", "features"),
]


def test_comments_of_others_and_what_is_not_whole(tmp_path: Path) -> None:
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
    for path, message in (
        ("/dev/zero", "plain file"),
        ("/dev/null", "plain"),
        (tmp_path, "folder"),
    ):
        with pytest.raises(InputError, match=message):
            read_origin(path)


# Digests


def model_digests(folder: Path) -> tuple[str, str]:
    model = load_model(folder)
    return model.grammar_part.digest, model.language_model_part.digest


def test_digests_of_a_model_folder(tmp_path: Path) -> None:
    """Of its grammar and its language model; None, where they are those of the first."""
    bitext = read_corpus(EXAMPLE / "dev.de", [EXAMPLE / "dev.en.0"])
    less = read_corpus(EXAMPLE / "test.de", [EXAMPLE / "test.en.0"])
    first = BitextModel("", iterations=1, order=2, folds=0, discount_fallback=(0.5, 1.0, 1.5))
    alignment = {"alignment_file": str(tmp_path / "0" / "alignment.gz")}
    found: list[tuple[str, str]] = []
    for corpus, changes, same in (
        (bitext, {}, (True, True)),
        (bitext, {"folds": 2}, (True, True)),
        (bitext, {"order": 3}, (True, False)),
        *((bitext, {name: n}, (False, True)) for name, n in OTHERS.items()),
        # The alignment that was computed is another one than the same from a file, to a digest.
        (bitext, alignment, (False, True)),
        (bitext, alignment | {"iterations": 3}, (False, True)),
        (less, {}, (False, False)),
    ):
        folder = tmp_path / str(len(found))
        replace(first, folder=str(folder), **changes).build(corpus, lambda step: None)
        found.append(model_digests(folder))
        assert tuple(a == b for a, b in zip(found[-1], found[0], strict=True)) == same
    assert found[-2] == found[-3]


OTHERS = {"table_limit": 3, "max_symbols": 4, "iterations": 2}


def test_digest_of_what_json_writes() -> None:
    one = digest_of({"a": [1, None], "b": "x"})
    assert one == digest_of({"b": "x", "a": [1, None]})
    assert one != digest_of({"a": [1, None], "b": "y"})
    assert re.fullmatch("[0-9a-f]{16}", one)


# The commands

POP_LIMIT = "decoder.pop_limit=10"


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


def test_weights_that_were_moved_or_are_of_another_tool(
    run: Run, moved: Path, tmp_path: Path
) -> None:
    assert f"{moved}: lies in no run's folder" in refused(run.place, moved)
    # Settings that do not say which model is meant are not enough.
    assert "lies in no run's folder" in refused(run.place, moved, "features=sparse", *MODEL)
    bare = tmp_path / "bare.txt"
    lines = [line for line in read_lines(run.weights) if not line.startswith("#")]
    bare.write_text("\n".join(lines))
    said = f"{bare}: does not say which model the weights belong to"
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


def test_weights_of_another_model_or_other_features(run: Run, moved: Path) -> None:
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


def test_weights_of_text_that_was_prepared_in_another_way(run: Run, tmp_path: Path) -> None:
    raw = train(run.place, "cased", "data.lowercase=false")
    moved = Path(shutil.copy(raw.weights, tmp_path))
    # The bitext is another one, too.
    folder = ["model.folder=outputs/models/example", *MODEL]
    steps = "de-en normalize tokenize"
    said = f"belongs to text that is prepared as {steps}, and not as {steps} lowercase; "
    assert said in refused(run.place, moved, *folder)
    translate(run.place, moved, *folder, "data.lowercase=false")


def write_files(run: Run, folder: Path) -> list[str]:
    """Write the model of a run to files; return the options that name them."""
    model = run.place / "outputs" / "models" / "example"
    write_grammar(folder / "rules.gz", load_grammar(model / "grammar"))
    shutil.copy(model / "lm.arpa.gz", folder)
    names = f"model.grammar={folder / 'rules.gz'}", f"model.language_model={folder / 'lm.arpa.gz'}"
    return ["model=files", *names]


def change_language_model(folder: Path) -> None:
    text = gzip.decompress((folder / "lm.arpa.gz").read_bytes())
    (folder / "lm.arpa.gz").write_bytes(gzip.compress(text.replace(b"-1", b"-2", 1)))


def test_weights_of_files(run: Run, tmp_path: Path) -> None:
    files = write_files(run, tmp_path)
    small = ["tuner.epochs=1", "tuner.sentences=10", "decoder.k=10", "decoder.pop_limit=5"]
    arguments = [*small, *files, "hydra.run.dir=of_files", "data.dev=test"]
    own = Run(run.place, "of_files", run_command("train", *arguments, folder=run.place).check())
    moved = Path(shutil.copy(own.weights, tmp_path))
    assert translate(run.place, moved, *files, "decoder.pop_limit=5") == expected(own)
    change_language_model(tmp_path)
    for weights, options in ((moved, files), (own.weights, [])):
        error = refused(run.place, weights, *options)
        assert error.count("lm.arpa.gz (de-en) [") == 2
        assert "rules.gz" not in error


def test_a_model_that_was_replaced_is_not_tuned_on(run: Run, tmp_path: Path) -> None:
    files = write_files(run, tmp_path)
    train_until_saved(tmp_path, *SMALL, *files, "hydra.run.dir=stopped", "data.test=null")
    change_language_model(tmp_path)
    outcome = run_command("train", "resume=stopped", folder=tmp_path)
    changed = "is of a run with language model = [0-9a-f]{16}, and now it is [0-9a-f]{16}; "
    assert outcome.code == 1 and re.search(changed, outcome.err)


def test_tuning_that_starts_from_weights_of_another_model(run: Run, tmp_path: Path) -> None:
    start = ["init=file", f"init.file={run.weights}"]
    same = train(run.place, "same_start", *start).outcome.out
    assert "tuning starts from it" not in same
    other = train(run.place, "other_start", *start, "features=dense").outcome.out
    notice = r"^(.*): belongs to the features (.*) \[.*\].* and not to the features dense \["
    found = re.search(notice, other, re.M)
    assert found is not None and found[1] == str(run.weights)


def test_weights_of_lists(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lists").write_text(LISTS)
    (tmp_path / "dev.de").write_text("ein guter tag\ndanke sehr\n")
    (tmp_path / "dev.en").write_text("a good day\nthank you\n")
    options = ["data=files", "data.name=l", "data.source_language=de", "data.target_language=en"]
    options += ["data.train=null", "data.dev=[dev.de,dev.en]", "tuner=pro"]
    options += ["decoder=kbest_files", "decoder.dev=lists"]
    first = [*options, "init=zero", "hydra.run.dir=first"]
    run_command("train", *first, folder=tmp_path).check()
    weights = tmp_path / "first" / "weights.txt.gz"
    comments = [TITLE.strip(), "# k-best lists: lists", "# dense features: LM TM"]
    assert [line for line in read_lines(weights) if line[0] == "#"] == comments
    # Those of a model are applied to lists, too; and lists may start from them.
    with_model, tuned = tmp_path / "with_model", Weights()
    tuned.set(["LM"], [0.5])
    save_weights(with_model, tuned, read_origin(run.weights))
    moved = Path(shutil.copy(weights, tmp_path / "moved.gz"))
    for path in (weights, moved, with_model):
        reranked = run_command("rerank", f"weights={path}", "input=lists", folder=tmp_path)
        assert reranked.check().out == "a good day\nthank you\n"
        if path is not with_model:
            assert "translates nothing" in refused(tmp_path, path)
    assert "translates nothing" in refused(run.place, moved, "data=example", *MODEL)
    start = [*options, "init=file", f"init.file={with_model}", "hydra.run.dir=second"]
    outcome = run_command("train", *start, folder=tmp_path).check()
    assert "and not to the k-best lists lists; tuning starts from it" in outcome.out
