"""Parallel text, read, found and written; compounds; public corpora."""

import gzip
import math
import os
import threading
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from commands import run_command, train
from hypothesis import given
from hypothesis import strategies as st
from small_lists import put

from torchtune_smt.cli import main
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.text import RESERVED
from torchtune_smt.data import bitext
from torchtune_smt.data.bitext import Corpus, find_files, read_corpus, write_corpus
from torchtune_smt.data.compounds import FILLERS, LEAST, CompoundSplitter
from torchtune_smt.data.corpora import CORPORA, fetch
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.data.preprocess import Preprocessor


def write(path, *lines):
    return put(path.parent, {path.name: "".join(f"{line}\n" for line in lines)})


def test_what_is_left_out_is_counted(tmp_path):
    alone = read_corpus(write(tmp_path / "input.de", "ein haus"))
    assert (alone.source, alone.references) == ([["ein", "haus"]], [[]])
    source = write(tmp_path / "dev.de.gz", "a  A", "b", "", "d")
    texts = {"dev.en.0": "abcd", "dev.en.1": ["a", "", "", "d"]}
    references = [write(tmp_path / name, *lines) for name, lines in texts.items()]
    corpus = read_corpus(source, references, empty="skip")
    assert corpus.source == [["a", "A"], ["d"]] and corpus.targets == [["a"], ["d"]]
    assert corpus.lines == [1, 4]
    assert corpus.summary() == "2 sentences, 2 lines dropped (2 empty)"
    pairs = [(10, 4), (3, 9), (11, 10), (10, 11), (1, 4), (10, 3)]
    source = write(tmp_path / "train.de", *("a " * n for n, _ in pairs))
    target = write(tmp_path / "train.en", *("a " * m for _, m in pairs))
    corpus = read_corpus(source, [target], lengths=(10, 3.0))
    assert corpus.lines == [1, 2]
    assert corpus.dropped == {"too long": 2, "of too different lengths": 2}
    source, target = write(tmp_path / "x.de", "Ein Haus."), write(tmp_path / "x.en", "I can't.")
    corpus = read_corpus(
        source, [target], source_text=Preprocessor("de"), target_text=Preprocessor("en")
    )
    assert (corpus.source, corpus.targets) == ([["ein", "haus", "."]], [["i", "can", "'t", "."]])


LENGTHS = {"empty": "skip", "lengths": (3, 9.0)}


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (["a", "b", "c"], ["a", "   ", "c"], {}, r"en:2: has no words.*data\.empty=skip"),
        *((["a", f"b {w}"], ["a", "b"], {}, "de:2: .* is reserved") for w in RESERVED),
        # No language model is estimated of unknown words.
        (["a", "<unk>"], ["a", "<unk>"], {"training": True}, "en:2: the word '<unk>' is reserved"),
        ([], [], {}, "de: is empty"),
        (["a a a a", ""], ["a", "b"], LENGTHS, "no sentence is left of 2 .*1 too long, 1 empty"),
    ],
)
def test_bad_texts(tmp_path, source, target, options, message):
    paths = write(tmp_path / "x.de", *source), [write(tmp_path / "x.en", *target)]
    with pytest.raises(ValueError, match=message):
        read_corpus(*paths, **options)
    if "<unk>" in target:
        read_corpus(*paths)
        read_corpus(paths[0], [write(tmp_path / "good.en", "a", "b")], training=True)


def test_training_pairs_have_one_target(tmp_path):
    source = write(tmp_path / "train.de", "a", "b")
    targets = [write(tmp_path / f"train.en.{i}", "a", "") for i in range(3)]
    assert len(read_corpus(source, targets, empty="skip").references[0]) == 3
    dataset = Dataset("x", "de", "en", str(tmp_path), empty="skip")
    with pytest.raises(InputError, match=r"en\.1: is a further target side of .*train\.de"):
        dataset.require("train", training=True)


def test_files_are_found(tmp_path):
    def refused(message, folder=tmp_path):
        with pytest.raises(InputError, match=message):
            find_files(folder, "dev", "de", "en")

    refused(r"must have dev\.de, and either dev\.en or .*, and has none of these; check")
    source = write(tmp_path / "dev.de.gz", "a")
    refused(r"and has dev\.de\.gz; check")
    # Many references in the order of their numbers.
    names = [f"dev.en.{i}{'.gz' if i % 2 else ''}" for i in range(12)]
    for name in names:
        write(tmp_path / name, "a")
    assert find_files(tmp_path, "dev", "de", "en") == (source, [tmp_path / name for name in names])
    (tmp_path / names[1]).unlink()
    refused(r"and has dev\.de\.gz, dev\.en\.0, dev\.en\.10, ")
    target = write(tmp_path / "dev.en", "a")
    write(tmp_path / names[1], "a")
    refused(r"and has dev\.de\.gz, dev\.en, dev\.en\.0, ")
    for path in tmp_path.glob("dev.en.*"):
        path.unlink()
    assert find_files(tmp_path, "dev", "de", "en") == (source, [target])


WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=5).filter(
    lambda word: word not in RESERVED
)
SENTENCES = st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=1, max_size=6)


@given(SENTENCES)
def test_written_and_read_back(tmp_path_factory, source):
    folder = tmp_path_factory.mktemp("corpus")
    references = [[words, words[::-1]] for words in source]
    corpus = Corpus(source, references, list(range(1, len(source) + 1)))
    paths = folder / "train.de.gz", [folder / "train.en.0", folder / "train.en.1.gz"]
    write_corpus(corpus, *paths)
    assert read_corpus(*paths) == corpus


def all_splits(word, counts):
    """Every way to take a word apart into words with counts, fillers between them."""
    found = [[word]] if word in counts else []
    for end in range(LEAST, len(word)):
        if word[:end] not in counts:
            continue
        for filler in FILLERS["de"]:
            if word.startswith(filler, end):
                rest = all_splits(word[end + len(filler) :], counts)
                found += [[word[:end], *parts] for parts in rest]
    return found


# Few letters, among them those of fillers, so that words have many splits.
part = st.text("aes", min_size=LEAST, max_size=6)


@given(
    st.dictionaries(part, st.integers(1, 50), min_size=1, max_size=25),
    st.lists(part, min_size=1, max_size=4).map("".join),
)
def test_the_split_has_the_largest_mean(counts, word):
    found = CompoundSplitter("de", counts).parts(word)
    splits = all_splits(word, counts)
    if not splits or len(word) < 2 * LEAST:
        assert found == [word]
        return
    means = [sum(math.log(counts[p]) for p in parts) / len(parts) for parts in splits]
    best = [parts for parts, mean in zip(splits, means, strict=True) if mean > max(means) - 1e-12]
    # Of equal ones the fewest parts.
    assert found in best and len(found) == min(map(len, best))


def test_examples():
    # No parts of fewer letters, no words with digits, none that nothing of is known.
    words = "planxyz plan2plan unbekannt plan tageplan".split()
    splitter = CompoundSplitter("de", {"plan": 20, "tage": 30})
    assert splitter.split(words) == [*words[:4], "tage", "plan"]
    splitter = CompoundSplitter("de", {"Plan": 9, "plan": 1, "Aktion": 3, "der": 100})
    words = ["Aktionsplan", "AKTIONSPLAN", "Plan", "plan"]
    assert splitter.split(words) == ["Aktion", "Plan", "Aktion", "Plan", "Plan", "plan"]


def test_counts_are_kept_in_a_file(tmp_path):
    CompoundSplitter.of_text("de", [["plan", "plan", "ab"], ["aktion", "x1y2z3"]]).save(
        tmp_path / "counts.gz"
    )
    loaded = CompoundSplitter.load("de", tmp_path / "counts.gz")
    assert loaded.counts == {"aktion": 1, "plan": 2}
    assert loaded.parts("aktionsplan") == ["aktion", "plan"]
    (tmp_path / "bad").write_text("plan\t2\naktion 1\n")
    with pytest.raises(InputError, match="bad:2: expected a word, a tab and its count"):
        CompoundSplitter.load("de", tmp_path / "bad")


def test_a_dataset_splits_its_source(tmp_path):
    put(tmp_path, {"train.de": "Der Plan\nein Plan\ndie Aktion\n", "train.en": "a\nb\nc\n"})
    put(tmp_path, {"dev.de": "der Aktionsplan\n", "dev.en": "aktionsplan\n"})
    options = {"lowercase": True, "test": None, "split_compounds": "de"}
    dataset = Dataset("x", "de", "en", str(tmp_path), **options)
    dev = dataset.require("dev")
    assert dev.source == [["der", "aktion", "plan"]]
    assert dev.references == [[["aktionsplan"]]]
    assert dataset.description() == "de-en lowercase split_compounds=de"
    with pytest.raises(InputError, match=r"data\.train is null; name its files"):
        Dataset("x", "de", "en", str(tmp_path), train=None, **options).require("dev")


def test_languages_are_codes_that_the_tokenizer_knows(tmp_path):
    for code in ("FR", "french", "fr-FR", ""):
        with pytest.raises(InputError, match=f"target_language={code} is no code of two or three"):
            Dataset("x", "de", code, tokenize=True)
        # Of text that is prepared it is the ending of files alone.
        assert Dataset("x", "de", code).without_rules() == []
    assert Dataset("x", "de", "fr", tokenize=True).without_rules() == []
    (said,) = Dataset("x", "deu", "fra", tokenize="target").without_rules()
    assert "no rules for target_language=fra, and takes English's" in said


def test_translate_splits_as_the_run_did(place, run):
    options = ["data.split_compounds=de", "model.folder=split", "tuner.epochs=1"]
    split = train(place, "split run", *options)
    assert (split.folder / "compounds.tsv.gz").is_file()
    assert "  compounds.tsv.gz      counts of words" in split.outcome.out
    assert not (run.folder / "compounds.tsv.gz").exists()
    arguments = [f"weights={split.weights}", f"input={example_folder() / 'test.de'}"]
    expected = (split.folder / "test.translations.txt").read_text()
    assert run_command("translate", *arguments, folder=place).check().out == expected
    # The counts are those of the run: with others, nothing is split.
    CompoundSplitter("de", {"wort": 1}).save(split.folder / "compounds.tsv.gz")
    assert run_command("translate", *arguments, folder=place).check().out != expected


RAW, FISHER = CORPORA["multi30k-raw"], CORPORA["fisher"]
PARTS = ("train", "dev", "devtest", "test")


def mirror(corpus, folder, text):
    """Write the same text as all files of a corpus, and return the address."""
    for part in corpus.parts:
        for number, piece in enumerate(part.pieces):
            for file in piece:
                put(folder, {file: text.format(part=part.name, number=number)})
    return folder.as_uri()


def fetched(corpus, folder, address, check=False):
    return fetch(corpus, folder, base_url=address, check=check, log=lambda _: None)


def read(folder, part, source):
    return read_corpus(*find_files(folder, part, source, "en"))


def test_listing(capsys):
    assert main(["get-data"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for name, corpus in CORPORA.items():
        said = [f"{name}: {corpus.title}", corpus.homepage, corpus.licence]
        said += [f"{corpus.base_url}/{corpus.parts[-1].pieces[-1][-1]}"]
        assert all(text in output for text in said)


def test_raw_text_is_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    address = mirror(RAW, tmp_path / "raw", 'A house in {part}.\nA „dog".\nHere. There is İT.\n')
    assert main(["get-data", "multi30k-raw", "--base-url", address]) == 0
    folder = tmp_path / "data" / "multi30k-raw-de-en"
    corpus = read(folder, "train", "de")
    quoted = ["a", "&quot;", "dog", "&quot;", "."]
    # It is lowercased before all else, as the text was that checksums and published scores are of:
    # the tokeniser looks at case.
    lowercased = ["here.", "there", "is", "it", "."]
    assert corpus.source == [["a", "house", "in", "train", "."], quoted, lowercased]
    # In English, a full stop goes behind a quotation mark.
    assert corpus.targets[1] == [*quoted[:3], ".", "&quot;"]
    packed = [f"train.{language}.gz" for language in ("de", "en")]
    names = {f"{part}.{language}" for part in PARTS[1:] for language in ("de", "en")}
    assert {path.name for path in folder.iterdir()} == {*packed, *names}
    output = capsys.readouterr().out
    assert "sha256" in output and "train: 3 sentences" in output


def test_pieces_are_joined_and_empty_lines_skipped(tmp_path):
    address = mirror(FISHER, tmp_path / "corpus", "Hola {number}, {part}.\n\nadiós\n")
    lines, out = [], tmp_path / "out"
    parts = fetch(FISHER, out, base_url=address, check=False, log=lines.append)
    train = read(out, "train", "es")
    assert [words[:3] for words in train.source[::2]] == [["hola", "0", ","], ["hola", "1", ","]]
    assert len(train) == 4
    assert parts["train"].dropped == {"empty": 2}
    assert any("train: 4 sentences, 2 lines dropped (2 empty)" in line for line in lines)
    assert len(read(out, "dev", "es").references[0]) == 4


def test_what_is_not_there_or_does_not_fit(tmp_path):
    out, raw = tmp_path / "out", tmp_path / "raw"
    here = mirror(RAW, raw, "a\nb\n")
    english = raw / "val.en.gz"

    for content, said in (
        (gzip.compress(b"One line.\n"), r"val\.en\.gz has 1 lines, val\.de\.gz has 2"),
        (b"<html>", r"val\.en\.gz: is no whole gzip file"),
    ):
        english.write_bytes(content)
        with pytest.raises(InputError, match=said):
            fetched(RAW, out, here)
    english.unlink()
    # Nothing listens on the discard port.
    for address in (here, "http://127.0.0.1:9/corpus", "/home"):
        with pytest.raises(InputError, match="gz: cannot be fetched .*--base-url"):
            fetched(RAW, out, address)
    assert not out.exists()


def test_wrong_content(tmp_path):
    address, out = mirror(CORPORA["multi30k"], tmp_path / "tok", "else\n"), tmp_path / "out"
    arguments = ["get-data", "multi30k", "--base-url", address, "--folder", str(out)]
    assert main(arguments) == 1
    assert not out.exists()
    assert main([*arguments, "--no-check"]) == 0
    assert (out / "dev.de").read_text() == "else\n"


@pytest.mark.parametrize("name", ["multi30k", "fisher", "tanaka"])
def test_what_is_published_is_what_experiments_are_on(shared, tmp_path, name):
    """The prepared texts are those that the recorded outputs of other tools belong to.

    Of what preparing does, only the blank before an apostrophe cannot be done twice.
    """
    corpus = CORPORA[name]
    here, source = shared / "data" / corpus.folder, corpus.source_language
    for part in corpus.parts:
        for i, output in enumerate(corpus.outputs(here, part)):
            plain = output.with_suffix("") if output.suffix == ".gz" else output
            packed = Path(f"{plain}.gz")
            data = gzip.decompress(packed.read_bytes()) if packed.is_file() else plain.read_bytes()
            text = data.decode().replace(" '", "'") if name == "fisher" else data.decode()
            lines = text.splitlines(keepends=True)
            # All pieces of a part follow one another.
            cuts = [len(lines) * n // len(part.pieces) for n in range(len(part.pieces) + 1)]
            for piece, (begin, end) in zip(part.pieces, pairwise(cuts), strict=True):
                put(tmp_path / "mirror", {piece[i]: "".join(lines[begin:end])})
    address = (tmp_path / "mirror").as_uri()
    fetched(corpus, tmp_path / "out", address, check=True)
    for part in corpus.parts:
        assert read(tmp_path / "out", part.name, source) == read(here, part.name, source)
    if name == "multi30k":
        # One word that differs is noticed.
        path = tmp_path / "mirror" / corpus.parts[-1].pieces[-1][-1]
        path.write_text(path.read_text().replace("a", "b", 1))
        with pytest.raises(InputError, match="test.en: would have the sha256 .* another version"):
            fetched(corpus, tmp_path / "out", address, check=True)


def test_tokens_are_kept_by_what_they_are_made_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    counted = Counter[str]()

    @dataclass(frozen=True)
    class Counting(Preprocessor):
        def tokens(self, line):
            counted["lines"] += 1
            return super().tokens(line)

    def made(*lines, language="en", copies):
        path, text = write(tmp_path / "text", *lines), Counting(language)
        counted.clear()
        read = read_corpus(path, empty="skip", source_text=text).source
        assert read == [words for line in lines if (words := Preprocessor(language).tokens(line))]
        assert len(list((tmp_path / "caches/torchtune_smt/texts").iterdir())) == copies
        return counted["lines"]

    odd = (
        "A  <b>\u0928\u093e\u092e\u200d</b>,\u2028x\x1fy http://a.b/c?d 1\u00a0000",
        "",
        "don't \u0085 (see)",
    )
    assert made(*odd, copies=1) == 3
    assert made(*odd, copies=1) == 0
    assert made(*odd, language="fr", copies=2) == 3
    assert made(*odd, "", copies=3) == 4
    for copy in (tmp_path / "caches").rglob("*.cache"):
        copy.write_bytes(copy.read_bytes()[:-1])
    assert made(*odd, "", copies=3) == 4
    monkeypatch.setattr(bitext, "KEPT", 1)
    assert made("others", copies=1) == 1
    assert made("others", copies=1) == 0
    # What is read once is not asked what it holds.
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=write, args=(tmp_path / "pipe", *odd)).start()
    read_corpus(tmp_path / "pipe", empty="skip", source_text=Counting())
    assert counted["lines"] == 3
