"""Model folders: built whole or not at all, recognised again, and what is decoded with them."""

import json
import os
import shutil
import threading
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from unittest.mock import Mock

import commands
import numpy as np
import pytest
from commands import example
from omegaconf import OmegaConf
from small_lists import put

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_folder
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.grammar import extract_grammar, read_alignments, write_alignments
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import NgramModel, estimate
from torchtune_smt.models import BitextModel, Model, base, load_model
from torchtune_smt.models.built import JointModel, PhraseModel
from torchtune_smt.models.folder import ARCHIVE
from torchtune_smt.runs.task import limits_of

OWN = {"alignment.gz", "grammar", "lm.arpa.gz", "folds", "model.json"}
SETTINGS = BitextModel(
    "", "fast_align", order=3, discount_fallback=(0.5, 1.0, 1.5), folds=3, iterations=2
)


def build_model(folder, bitext, settings, report=lambda step: None):
    replace(settings, folder=str(folder)).build(bitext, report)


def check_model(folder, bitext, settings):
    return replace(settings, folder=str(folder)).why_not_built(bitext)


def part_of(corpus, chosen):
    return Corpus(
        [corpus.source[i] for i in chosen],
        [corpus.references[i] for i in chosen],
        [corpus.lines[i] for i in chosen],
        {"chosen by nobody": len(corpus) - len(chosen)},
    )


@pytest.fixture(scope="module")
def bitext():
    return replace(part_of(example().require("train"), list(range(60))), dropped={})


@pytest.fixture(scope="module")
def built(bitext, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "example"
    build_model(folder, bitext, SETTINGS)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(built, tmp_path / "model"))


content = partial(commands.content, without="*.cache")


def refused(match):
    return pytest.raises(InputError, match=match)


def test_a_model_is_written_reported_and_recognised(bitext, built, tmp_path):
    """The same bitext gives the same bytes."""
    steps, folder = [], tmp_path / "new" / "model"
    # An empty one is filled.
    folder.mkdir(parents=True)
    build_model(folder, bitext, SETTINGS, steps.append)
    assert [step.split()[0] for step in steps] == ["aligned", "extracted", "estimated", "estimated"]
    assert check_model(folder, bitext, SETTINGS) is None
    assert content(folder) == content(built)
    assert {path.name for path in folder.iterdir()} == OWN
    # Nothing else is left.
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_nothing_is_written_or_copied_where_a_link_of_a_model_leads(bitext, folder, tmp_path):
    elsewhere = (folder / "folds").rename(tmp_path / "elsewhere")
    (folder / "folds").symlink_to(elsewhere)
    for cache in tmp_path.rglob("*.cache"):
        cache.unlink()
    before = content(elsewhere)
    assert len(load_model(folder, folds=True).folds) == 3
    assert content(elsewhere) == before
    assert (folder / "lm.arpa.gz.cache").is_file()
    # Nor is a device copied from the model beside.
    (folder / "alignment.gz").unlink()
    (folder / "alignment.gz").symlink_to("/dev/zero")
    build_model(tmp_path / "other", bitext, replace(SETTINGS, folds=0))
    with refused("holds no cross-fitted language models; build it with"):
        load_model(tmp_path / "other", folds=True)


def test_folds_are_added_when_they_are_wanted(bitext, built, tmp_path):
    source, said = replace(SETTINGS, folder=str(tmp_path / "model")), list[str]()
    source.open(lambda: bitext, report=said.append)
    assert not (tmp_path / "model" / "folds").exists()
    inode = (tmp_path / "model" / "grammar").stat().st_ino
    # Their number says nothing of a model without them.
    assert replace(source, folds=5).why_not_built(bitext, folds=False) is None
    reason = "it has no cross-fitted language models yet"
    assert source.why_not_built(bitext) == reason
    with refused(f"{reason}, and a model is never built where"):
        source.open(lambda: bitext, folds=True, may_write=False)
    assert len(source.open(lambda: bitext, folds=True, report=said.append).folds) == 3
    steps = ["building", "aligned", "extracted", "estimated"]
    steps += ["building", "shared", "shared", "shared", "estimated"]
    assert [line.split()[0] for line in said] == steps
    assert (tmp_path / "model" / "grammar").stat().st_ino == inode
    assert content(tmp_path / "model") == content(built)


def test_other_settings_or_another_bitext_are_a_reason(built, bitext):
    other = {"aligner": "hmm", "alignment_file": "somewhere", "discount_fallback": None}
    other |= {"iterations": 3, "max_phrase_length": 7, "max_symbols": 4, "unaligned_edges": True}
    other |= {"counts": "occurrences", "table_limit": 20, "order": 4, "folds": 2}
    for name, value in other.items():
        reason = check_model(built, bitext, replace(SETTINGS, **{name: value}))
        assert reason is not None and reason.startswith(f"it was built with {name}=")
    changed = part_of(bitext, list(range(60)))
    changed.references[7] = [["else"]]
    for corpus in (changed, part_of(bitext, list(range(59)))):
        assert check_model(built, corpus, SETTINGS) == "it was built from another bitext"


# Of version 1, which had no checksums.
OLD = {"version": 1, "settings": {}, "bitext": "", "alignment": None}


@pytest.mark.parametrize(
    ("name", "text", "reason", "refusal"),
    [
        *(
            ("model.json", text, "{folder}/model.json is damaged", "is damaged: .*; remove")
            for text in ("{", "[]", "{}", '{"version": 2, "settings": 3}')
        ),
        ("model.json", json.dumps(OLD), "it was built by another version", "of version 1"),
        ("model.json", None, "there is no whole model", "holds no whole model; build it"),
        ("grammar", None, "grammar is missing", "no such file"),
        ("lm.arpa.gz", None, "lm.arpa.gz is missing", "no such file"),
        ("folds", None, "folds is missing", "holds no whole set"),
    ],
)
def test_what_is_no_model_is_a_reason_and_an_error(folder, bitext, name, text, reason, refusal):
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if text is not None:
        path.write_text(text, encoding="latin-1")
    found = check_model(folder, bitext, SETTINGS)
    assert found is not None and found.startswith(reason.format(folder=folder))
    with refused(refusal):
        load_model(folder, folds=True)


@pytest.mark.parametrize("name", ["grammar", "lm.arpa.gz", "folds/folds.json"])
def test_a_part_of_another_model_is_refused(folder, bitext, tmp_path, name):
    build_model(tmp_path / "other", part_of(bitext, list(range(3, 60))), SETTINGS)
    shutil.copy(tmp_path / "other" / name, folder / name)
    with refused(f"{name}: is .* another .*; remove the model's folder"):
        load_model(folder, folds=True)


def test_a_folder_is_loaded_as_one_version(built, bitext, tmp_path):
    build_model(tmp_path / "b", part_of(bitext, list(range(3, 60))), SETTINGS)
    folder, end = tmp_path / "model", threading.Event()
    shutil.copytree(built, folder)

    def build_again():
        for source in cycle([tmp_path / "b", built]):
            if end.is_set():
                return
            with atomic_folder(folder) as beside:
                shutil.copytree(source, beside, dirs_exist_ok=True)

    def digest(path):
        model = load_model(path)
        return len(model.grammar), model.language_model.score(bitext.targets[5])[0]

    whole = {digest(built), digest(tmp_path / "b")}
    assert len({rules for rules, _ in whole}) == len({score for _, score in whole}) == 2
    builder = threading.Thread(target=build_again)
    builder.start()
    try:
        seen = [digest(folder) for _ in range(50)]
    finally:
        end.set()
        builder.join()
    assert set(seen) == whole


def test_something_else_is_not_overwritten(bitext, tmp_path):
    (tmp_path / "thesis.txt").write_text("important")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with refused("exists and holds no model; choose another folder"):
            build_model(folder, bitext, SETTINGS)
    with refused("cannot be written .*; choose a folder"):
        build_model(tmp_path / "thesis.txt" / "model", bitext, SETTINGS)
    assert content(tmp_path) == {"thesis.txt": b"important"}


OTHER = replace(SETTINGS, table_limit=20)


@pytest.mark.parametrize("name", ["run1/weights.txt.gz", "folds/thesis.txt", "empty/"])
def test_what_is_not_of_the_model_is_not_removed(folder, bitext, name):
    path = folder / name
    if name.endswith("/"):
        path.mkdir()
    else:
        put(folder, {name: "important"})
    before, steps = content(folder), []
    # A folder is named as a whole.
    named = folder / "run1" if name.startswith("run1") else path
    with refused(f"{named}: is not of the model in this folder"):
        build_model(folder, bitext, OTHER, steps.append)
    # At once, and not when all is made.
    assert not steps and content(folder) == before and path.exists()


def test_a_build_that_ends_early_leaves_the_old_model(folder, bitext):
    before, steps = content(folder), []
    with pytest.raises(KeyboardInterrupt):
        build_model(folder, bitext, OTHER, Mock(side_effect=KeyboardInterrupt))
    # 60 sentences are too few for these folds, which is found after alignment and extraction.
    with refused("too few for 61 folds"):
        build_model(folder, bitext, replace(SETTINGS, folds=61), steps.append)
    assert len(steps) == 3 and content(folder) == before
    with refused("thesis.txt: is not of the model in this folder"):
        build_model(folder, bitext, OTHER, lambda step: (folder / "thesis.txt").touch())
    assert content(folder) == before | {"thesis.txt": b""}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("damaged", [False, True])
def test_all_that_the_package_leaves_in_a_model_is_replaced(folder, bitext, damaged):
    """Copies of language models, and what kills have left."""
    load_model(folder, folds=True)
    assert (folder / "lm.arpa.gz.cache").exists()
    (folder / "lm.arpa.gz").unlink()
    for name in (".lm.arpa.gz.cache.12345678.part", "folds/.fold-1.arpa.gz.cache.abcd1234.part"):
        (folder / name).write_bytes(b"some")
    if damaged:
        (folder / "model.json").write_bytes(b"{")
    build_model(folder, bitext, OTHER)
    assert check_model(folder, bitext, OTHER) is None
    # The copy may be that of the model before, which is shared.
    assert {path.name for path in folder.iterdir()} - {"lm.arpa.gz.cache"} == OWN


def test_the_folder_of_the_command_is_not_replaced(folder, bitext, monkeypatch):
    before = content(folder)
    for place in (folder, folder / "folds"):
        monkeypatch.chdir(place)
        with refused("is the folder that the command runs in, or one above it"):
            build_model(Path(os.path.relpath(folder)), bitext, OTHER)
    assert content(folder) == before


# Parts that models share


LMS = {"lm.arpa.gz", *(f"folds/fold-{f}.arpa.gz" for f in range(3))}
LM_FILES = {"folds/folds.json", *LMS}


def shared_with(folder, other):
    """Return the files that are one in both folders."""
    names = content(folder).keys() & content(other).keys()
    return {name for name in names if (folder / name).samefile(other / name)}


@pytest.mark.parametrize(
    ("changed", "shared"),
    [
        ({"table_limit": 20}, {"alignment.gz", *LM_FILES}),
        ({"order": 2}, {"alignment.gz", "grammar"}),
        ({"folds": 2}, {"alignment.gz", "grammar", "lm.arpa.gz"}),
    ],
)
def test_models_share_what_is_made_from_the_same(folder, bitext, changed, shared):
    # Copies of language models come along.
    load_model(folder, folds=True)
    settings, steps = replace(SETTINGS, **changed), list[str]()
    model, alone = folder.parent / "other", folder.parent / "apart" / "model"
    build_model(model, bitext, settings, steps.append)
    build_model(alone, bitext, settings)
    assert shared_with(folder, model) == shared
    copies = [folder / f"{name}.cache" for name in shared & LMS]
    assert all(path.samefile(model / path.relative_to(folder)) for path in copies)
    assert {f"shared {name.split('/')[0]} with {folder}" for name in shared} == {
        step.split(" (")[0] for step in steps if step.startswith("shared")
    }
    # It is the model that it would have been otherwise, also when the other one is gone.
    shutil.rmtree(folder)
    assert content(model) == content(alone)
    assert check_model(model, bitext, settings) is None
    load_model(model, folds=True)


def test_parts_are_shared_with_the_model_before_and_with_phrases(folder, bitext):
    files = {name: (folder / name).stat().st_ino for name in content(folder)}
    build_model(folder, bitext, OTHER)
    same = {name for name, inode in files.items() if (folder / name).stat().st_ino == inode}
    assert same == {"alignment.gz", *LM_FILES}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    names = ("aligner", "order", "discount_fallback", "folds", "iterations")
    options = {name: getattr(SETTINGS, name) for name in names}
    PhraseModel(str(folder.parent / "phrases"), **options).build(bitext)
    assert shared_with(folder, folder.parent / "phrases") == {"alignment.gz", *LM_FILES}


def test_what_is_damaged_or_of_another_text_is_not_shared(built, folder, bitext):
    part = part_of(bitext, list(range(40)))
    build_model(folder.parent / "less", part, SETTINGS)
    assert shared_with(folder, folder.parent / "less") == set()
    for name in ("alignment.gz", "grammar", "lm.arpa.gz", "folds/fold-1.arpa.gz"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (folder.parent / "damaged").mkdir()
    (folder.parent / "damaged" / "model.json").write_text("{}")
    again = folder.parent / "again"
    build_model(again, bitext, SETTINGS)
    assert content(again) == content(built)
    # The folds have a damaged file among them: none is taken.
    assert shared_with(folder, again) == set()


def test_where_files_cannot_have_two_names_they_are_copied(folder, bitext, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    build_model(folder.parent / "other", bitext, SETTINGS)
    assert content(folder.parent / "other") == content(folder)
    assert shared_with(folder, folder.parent / "other") == set()


# An alignment of the user's own


def test_a_given_alignment_is_used(built, bitext, tmp_path):
    path, folder = tmp_path / "alignment.gz", tmp_path / "model"
    settings = replace(SETTINGS, alignment_file=str(shutil.copy(built / "alignment.gz", path)))
    build_model(folder, bitext, settings)
    assert content(folder) | {"model.json": b""} == content(built) | {"model.json": b""}
    links = read_alignments(path)
    write_alignments(path, [links[0][:1], *links[1:]])
    assert check_model(folder, bitext, settings) == "it was built from another alignment"
    # Lines are those of the file, also where some were dropped.
    write_alignments(path, [*links[:4], np.array([[0, 0], [2, 99]], np.int32), *links[5:]])
    with refused(f"{path}:5: has a link out of its sentence pair"):
        corpus = part_of(bitext, [i for i in range(60) if i != 2])
        build_model(tmp_path / "other", corpus, settings)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("order", "limit"), [(1, 6), (-1, -1)])
def test_phrases_are_translated_in_any_order_where_words_move_far(bitext, tmp_path, order, limit):
    """Decided by the alignment, unless the user has."""
    links = [
        np.array([*zip(range(m), range(m)[::order], strict=True)], np.int32)
        for m in (min(len(s), len(t)) for s, t in zip(bitext.source, bitext.targets, strict=True))
    ]
    write_alignments(tmp_path / "alignment", links)
    source = PhraseModel(
        str(tmp_path / "model"), alignment_file=str(tmp_path / "alignment"), order=2, folds=0,
        discount_fallback=(0.5, 1.0, 1.5),
    )  # fmt: skip
    said = list[str]()
    model = source.open(lambda: bitext, report=said.append)
    assert PhraseDecoder(model).distortion_limit == limit
    assert PhraseDecoder(model, distortion_limit=4).distortion_limit == 4
    assert any("decoder has distortion_limit=-1" in line for line in said) == (limit == -1)
    hiero = replace(SETTINGS, folder=str(tmp_path / "hiero"), folds=0)
    both = JointModel(hiero, source).open(lambda: bitext, report=said.append)
    assert both.limits == ({"phrase.distortion_limit": -1} if limit == -1 else {})
    recorded = {"phrase.distortion_limit of the model": "-1"} if limit == -1 else {}
    for given, expected in ((None, recorded), (0, {})):
        options = OmegaConf.create({"phrase": {"distortion_limit": given}})
        assert limits_of(both, options) == expected
    assert PhraseDecoder(both.models["phrase"]).distortion_limit == limit
    # A model of before has no limits.
    path = tmp_path / "model" / "model.json"
    manifest = ARCHIVE.read_json(path)
    del manifest["limits"], manifest["checksum"]
    ARCHIVE.write_json(path, manifest)
    model = source.open(lambda: pytest.fail("built"), compare_bitext=False)
    assert PhraseDecoder(model).distortion_limit == 6


# Decoding


def entries(model, source):
    """The strings of a list with their scores; rows may differ where derivations tie."""
    decoder = HieroDecoder(model, k=20, pop_limit=30)
    weights = Weights(decoder.dense_names)
    weights.set(decoder.dense_names, [0.2, 0.1, 0.15, 0.1, -0.1, 0.4, -1.0, -0.3, -1.0, -0.05])
    (kbest,) = decoder.decode([source], weights)
    return {kbest.text(h): kbest.score[h] for h in range(len(kbest))}


def of_others(folder, corpus, others, unseen):
    """A grammar of some sentences, with their alignments, and a language model of some."""
    links = read_alignments(folder / "alignment.gz")
    grammar = extract_grammar(
        [corpus.source[i] for i in others],
        [corpus.targets[i] for i in others],
        [links[i] for i in others],
        unaligned_edges=SETTINGS.unaligned_edges,
        table_limit=SETTINGS.table_limit,
    )
    text = [corpus.targets[i] for i in unseen]
    ngrams = estimate(text, SETTINGS.order, SETTINGS.discount_fallback)
    return Model(grammar, NgramModel.from_ngrams(ngrams))


@pytest.mark.parametrize("index", [0, 17, 59])
def test_a_training_sentence_is_decoded_as_if_it_were_new(built, bitext, index):
    model = load_model(built, folds=True)
    assert len(model.folds) == 3
    own = entries(model, Source(0, bitext.source[index], index))
    others = [i for i in range(60) if i != index]
    unseen = [i for i in range(60) if i % 3 != index % 3]
    expected = entries(of_others(built, bitext, others, unseen), Source(0, bitext.source[index]))
    assert own == pytest.approx(expected, abs=1e-4)
    # It does make a difference.
    seen = entries(model, Source(0, bitext.source[index]))
    assert max(seen.values()) > max(own.values())


def test_all_identical_pairs_are_left_out_together(bitext, tmp_path):
    """The grammar and the language model of a training sentence have seen none of its twins."""
    folder = tmp_path / "model"
    source = replace(SETTINGS, folder=str(folder), leave_out="identical", rule_counts=False)
    corpus, said = part_of(bitext, [*range(30), 4, 5, 4]), list[str]()
    model = source.open(lambda: corpus, folds=True, report=said.append)
    own = entries(model, Source(0, corpus.source[30], 30))
    others = [i for i in range(len(corpus)) if i not in (4, 30, 32)]
    # All of them are in the fold of the first one: 1, where those of other numbers stay.
    folds = [4 % 3 if i in (30, 32) else 5 % 3 if i == 31 else i % 3 for i in range(len(corpus))]
    unseen = [i for i, fold in enumerate(folds) if fold != 4 % 3]
    expected = entries(of_others(folder, corpus, others, unseen), Source(0, corpus.source[30]))
    assert own == pytest.approx(expected, abs=1e-4)
    # By default they stay; that takes other folds, and no other grammar.
    usual = replace(source, leave_out="sentence")
    assert usual.why_not_built(corpus, folds=False) is None
    reason = "it was built with leave_out=identical, not sentence"
    assert usual.why_not_built(corpus) == reason
    del said[:]
    model = usual.open(lambda: corpus, folds=True, report=said.append)
    assert [line.split()[0] for line in said] == ["building", *["shared"] * 3, "estimated"]
    twins = entries(model, Source(0, corpus.source[30], 30))
    assert max(twins.values()) > max(own.values())


def test_a_large_model_is_announced(tmp_path, monkeypatch):
    (tmp_path / "model" / "folds").mkdir(parents=True)
    for name, size in (("model/grammar", 1000), ("model/folds/1", 500), ("lm", 30), ("links", 7)):
        (tmp_path / name).write_bytes(b"x" * size)
    options = {"_target_": "a.B", "folder": str(tmp_path / "model"), "lm": str(tmp_path / "lm")}
    options |= {"alignment_file": str(tmp_path / "links"), "order": 5, "format": None}
    assert base.model_size(options) == 1530 and base.announcement(options) is None
    monkeypatch.setattr(base, "LARGE", 1)
    assert base.announcement(options) is not None
