"""Public corpora: said where they are, fetched from copies of them, prepared and checked."""

import gzip
import hashlib
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from torchtune_smt.cli import main
from torchtune_smt.core.errors import InputError
from torchtune_smt.data.bitext import Corpus, find_files, read_corpus, written_lines
from torchtune_smt.data.corpora import CORPORA, PublicCorpus, addresses, fetch

RAW, FISHER = CORPORA["multi30k-raw"], CORPORA["fisher"]
PARTS = ("train", "dev", "devtest", "test")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def mirror(corpus: PublicCorpus, folder: Path, text: str) -> str:
    """Write the same text as all files of a corpus, and return the address."""
    for part in corpus.parts:
        for number, piece in enumerate(part.pieces):
            for file in piece:
                put(folder / file, text.format(part=part.name, number=number))
    return folder.as_uri()


def fetched(
    corpus: PublicCorpus, folder: Path, address: str, check: bool = False
) -> dict[str, Corpus]:
    return fetch(corpus, folder, base_url=address, check=check, log=lambda _: None)


def read(folder: Path, part: str, source: str) -> Corpus:
    return read_corpus(*find_files(folder, part, source, "en"))


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get-data"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for name, corpus in CORPORA.items():
        said = [f"{name}: {corpus.title}", corpus.homepage, corpus.licence, *addresses(corpus)]
        assert all(text in output for text in said)


def test_raw_text_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = mirror(RAW, tmp_path / "raw", 'A house in {part}.\nA „dog".\n')
    assert main(["get-data", "multi30k-raw", "--base-url", address]) == 0
    folder = tmp_path / "data" / "multi30k-raw-de-en"
    corpus = read(folder, "train", "de")
    quoted = ["a", "&quot;", "dog", "&quot;", "."]
    assert corpus.source == [["a", "house", "in", "train", "."], quoted]
    # In English, a full stop goes behind a quotation mark.
    assert corpus.targets[1] == [*quoted[:3], ".", "&quot;"]
    packed = [f"train.{language}.gz" for language in ("de", "en")]
    names = {f"{part}.{language}" for part in PARTS[1:] for language in ("de", "en")}
    assert {path.name for path in folder.iterdir()} == {*packed, *names}
    output = capsys.readouterr().out
    assert "sha256" in output and "train: 2 sentences" in output


@pytest.mark.parametrize("corpus", [RAW, FISHER])
def test_text_is_lowercased_before_all_else(corpus: PublicCorpus, tmp_path: Path) -> None:
    """As the text was that checksums and published scores are of: the tokeniser looks at case."""
    parts = fetched(corpus, tmp_path / "out", mirror(corpus, tmp_path, "Here. There is İT.\n"))
    for part in parts.values():
        for words in (part.source[0], *part.references[0]):
            assert words == ["here.", "there", "is", "it", "."]


def test_pieces_are_joined_and_empty_lines_skipped(tmp_path: Path) -> None:
    address = mirror(FISHER, tmp_path / "corpus", "Hola {number}, {part}.\n\nadiós\n")
    lines: list[str] = []
    out = tmp_path / "out"
    parts = fetch(FISHER, out, base_url=address, check=False, log=lines.append)
    train = read(out, "train", "es")
    assert [words[:3] for words in train.source[::2]] == [["hola", "0", ","], ["hola", "1", ","]]
    assert len(train) == 4
    assert parts["train"].dropped == {"empty": 2}
    assert any("train: 4 sentences, 2 lines dropped (2 empty)" in line for line in lines)
    assert len(read(out, "dev", "es").references[0]) == 4


def test_what_is_not_there_or_does_not_fit(tmp_path: Path) -> None:
    out, raw = tmp_path / "out", tmp_path / "raw"
    here = mirror(RAW, raw, "a\nb\n")
    english = raw / "val.en.gz"

    def check(word: str, address: str = here) -> None:
        with pytest.raises(InputError, match=word):
            fetched(RAW, out, address)

    put(english, "One line.\n")
    check(r"val\.en\.gz has 1 lines, val\.de\.gz has 2")
    english.write_bytes(b"<html>")
    check(r"val\.en\.gz: is no whole gzip file")
    english.unlink()
    check(r"val\.en\.gz: cannot be fetched .*--base-url")
    # Nothing listens on the discard port.
    for address, word in (("http://127.0.0.1:9/corpus", "network"), ("/home", "is no address")):
        check(word, address)
    assert not out.exists()


def test_wrong_content(tmp_path: Path) -> None:
    address, out = mirror(CORPORA["multi30k"], tmp_path / "tok", "else\n"), tmp_path / "out"
    arguments = ["get-data", "multi30k", "--base-url", address, "--folder", str(out)]
    assert main(arguments) == 1
    assert not out.exists()
    assert main([*arguments, "--no-check"]) == 0
    assert (out / "dev.de").read_text() == "else\n"


@pytest.mark.parametrize("part", PARTS)
def test_another_version(tmp_path: Path, part: str) -> None:
    """One word that differs in one part is noticed, whatever the others are."""
    address = mirror(FISHER, tmp_path / "corpus", "Hola {number}, {part}.\n\nadiós\n")
    known = fetched(FISHER, tmp_path / "a", address)

    def sums(name: str) -> tuple[str, ...]:
        files = written_lines(known[name])
        return tuple(hashlib.sha256("".join(lines).encode()).hexdigest() for lines in files)

    made_up = replace(FISHER, parts=tuple(replace(p, sha256=sums(p.name)) for p in FISHER.parts))
    out = tmp_path / "out"
    fetched(made_up, out, address, check=True)
    shutil.rmtree(out)
    last = next(p for p in FISHER.parts if p.name == part).pieces[-1][-1]
    path = tmp_path / "corpus" / last
    path.write_text(path.read_text().replace("adiós", "Adiós,"))
    with pytest.raises(InputError, match=f"{part}.en.*: would have the sha256 .* another version"):
        fetched(made_up, out, address, check=True)
    assert not out.exists()


@pytest.mark.parametrize("name", ["multi30k", "fisher"])
def test_what_is_published_is_what_experiments_are_on(
    shared: Path, tmp_path: Path, name: str
) -> None:
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
            text = data.decode() if name == "multi30k" else data.decode().replace(" '", "'")
            lines = text.splitlines(keepends=True)
            # All pieces of a part follow one another.
            cuts = [len(lines) * n // len(part.pieces) for n in range(len(part.pieces) + 1)]
            for piece, (begin, end) in zip(part.pieces, pairwise(cuts), strict=True):
                put(tmp_path / "mirror" / piece[i], "".join(lines[begin:end]))
    fetched(corpus, tmp_path / "out", (tmp_path / "mirror").as_uri(), check=True)
    for part_name in PARTS:
        assert read(tmp_path / "out", part_name, source) == read(here, part_name, source)
