import gzip
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from torchtune_smt.cli import main
from torchtune_smt.core.errors import InputError
from torchtune_smt.data.bitext import find_files, read_corpus, written_lines
from torchtune_smt.data.corpora import CORPORA, addresses, fetch


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def raw_mirror(tmp_path: Path) -> Path:
    """A folder with the files of multi30k-raw, two sentences each."""
    folder = tmp_path / "raw"
    for part in CORPORA["multi30k-raw"].parts:
        for german, english in part.pieces:
            put(folder / german, f"Ein Haus in {part.name}.\nEin „Hund“.\n")
            put(folder / english, f'A house in {part.name}.\nA "dog".\n')
    return folder


@pytest.fixture
def fisher_mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    for part in CORPORA["fisher"].parts:
        for number, piece in enumerate(part.pieces):
            for file in piece:
                put(folder / file, f"Hola {number}, {file}.\n\nadiós\n")
    return folder


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get-data"]) == 0
    output = capsys.readouterr().out
    for name, corpus in CORPORA.items():
        assert f"{name}: {corpus.title}" in output
        assert corpus.homepage in output
        assert corpus.licence in output
        for address in addresses(corpus):
            assert address in output


def test_raw_text_is_prepared(raw_mirror: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "out"
    arguments = ["get-data", "multi30k-raw", "--base-url", raw_mirror.as_uri()]
    assert main([*arguments, "--folder", str(folder)]) == 0
    corpus = read_corpus(*find_files(folder, "train", "de", "en"))
    assert corpus.source == [
        ["ein", "haus", "in", "train", "."],
        ["ein", "&quot;", "hund", "&quot;", "."],
    ]
    assert corpus.targets[1] == ["a", "&quot;", "dog", ".", "&quot;"]
    assert (folder / "train.de.gz").is_file()
    assert {path.name.removesuffix(".gz") for path in folder.iterdir()} == {
        f"{part}.{language}"
        for part in ("train", "dev", "devtest", "test")
        for language in ("de", "en")
    }
    output = capsys.readouterr().out
    assert "sha256" in output
    assert "train: 2 sentences" in output


@pytest.mark.parametrize("name", ["multi30k-raw", "fisher"])
def test_text_is_lowercased_before_all_else(name: str, tmp_path: Path) -> None:
    """As the text was that checksums and published scores are of: the tokeniser looks at case."""
    corpus = CORPORA[name]
    for part in corpus.parts:
        for piece in part.pieces:
            for file in piece:
                put(tmp_path / file, "Here. There is İT.\n")
    address = tmp_path.as_uri()
    parts = fetch(corpus, tmp_path / "out", base_url=address, check=False, log=lambda _: None)
    for part in parts.values():
        for words in (part.source[0], *part.references[0]):
            assert words == ["here.", "there", "is", "it", "."]


def test_default_folder(raw_mirror: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["get-data", "multi30k-raw", "--base-url", raw_mirror.as_uri()]) == 0
    assert (tmp_path / "data" / "multi30k-raw-de-en" / "test.en").is_file()


def test_pieces_are_joined_and_empty_lines_skipped(fisher_mirror: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    parts = fetch(
        CORPORA["fisher"],
        tmp_path / "out",
        base_url=fisher_mirror.as_uri(),
        check=False,
        log=lines.append,
    )
    train = read_corpus(*find_files(tmp_path / "out", "train", "es", "en"))
    assert train.source[0][:3] == ["hola", "0", ","]
    assert train.source[2][:3] == ["hola", "1", ","]
    assert len(train) == 4
    assert parts["train"].dropped == {"empty": 2}
    assert any("train: 4 sentences, 2 lines dropped (2 empty)" in line for line in lines)
    dev = read_corpus(*find_files(tmp_path / "out", "dev", "es", "en"))
    assert len(dev.references[0]) == 4


def test_missing_file_leaves_nothing_behind(raw_mirror: Path, tmp_path: Path, capsys) -> None:
    (raw_mirror / "test_2016_flickr.en.gz").unlink()
    folder = tmp_path / "out"
    arguments = ["get-data", "multi30k-raw", "--base-url", raw_mirror.as_uri()]
    assert main([*arguments, "--folder", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "test_2016_flickr.en.gz: cannot be fetched" in error
    assert "--base-url" in error
    assert not folder.exists()


def test_wrong_content(tmp_path: Path) -> None:
    folder = tmp_path / "tok"
    for part in CORPORA["multi30k"].parts:
        for file in part.pieces[0]:
            put(folder / file, "something else\n")
    arguments = ["get-data", "multi30k", "--base-url", folder.as_uri()]
    with pytest.raises(InputError, match=r"train\.de\.gz: would have the sha256 .* should"):
        fetch(CORPORA["multi30k"], tmp_path / "out", base_url=folder.as_uri(), log=lambda _: None)
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "--folder", str(tmp_path / "out")]) == 1
    assert main([*arguments, "--folder", str(tmp_path / "out"), "--no-check"]) == 0
    assert (tmp_path / "out" / "dev.de").read_text() == "something else\n"


def test_pages_that_do_not_fit(raw_mirror: Path, tmp_path: Path) -> None:
    put(raw_mirror / "val.en.gz", "One line.\n")
    with pytest.raises(InputError, match=r"val\.en\.gz has 1 lines, val\.de\.gz has 2"):
        fetch(CORPORA["multi30k-raw"], tmp_path / "out", base_url=raw_mirror.as_uri())
    (raw_mirror / "val.en.gz").write_bytes(b"<html>")
    with pytest.raises(InputError, match=r"val\.en\.gz: is no whole gzip file"):
        fetch(CORPORA["multi30k-raw"], tmp_path / "out", base_url=raw_mirror.as_uri())


def test_no_network(tmp_path: Path) -> None:
    # Nothing listens on the discard port.
    with pytest.raises(InputError, match="check the network, or copy the files"):
        fetch(CORPORA["fisher"], tmp_path, base_url="http://127.0.0.1:9/corpus", timeout=5)
    with pytest.raises(InputError, match="is no address"):
        fetch(CORPORA["fisher"], tmp_path, base_url="/home/me/corpus")


def test_published_checksums(shared: Path, tmp_path: Path) -> None:
    """The prepared Multi30k is the one that the recorded outputs of other tools belong to."""
    here = shared / "data" / "multi30k-de-en"
    mirror = tmp_path / "tok"
    mirror.mkdir()
    for part in CORPORA["multi30k"].parts:
        for language, file in zip(("de", "en"), part.pieces[0], strict=True):
            packed = here / f"{part.name}.{language}.gz"
            if packed.is_file():
                (mirror / file).write_bytes(gzip.decompress(packed.read_bytes()))
            else:
                shutil.copy(here / f"{part.name}.{language}", mirror / file)
    fetch(CORPORA["multi30k"], tmp_path / "out", base_url=mirror.as_uri(), log=lambda _: None)
    for part in ("train", "dev", "devtest", "test"):
        assert read_corpus(*find_files(tmp_path / "out", part, "de", "en")) == read_corpus(
            *find_files(here, part, "de", "en")
        )


def write_fisher(shared: Path, mirror: Path) -> None:
    """Write files from which the corpus beside the repository is prepared.

    Their words are its words: of what preparing does, only the blank before an apostrophe cannot
    be done twice.
    """
    here = shared / "data" / "fisher-es-en"
    corpus = CORPORA["fisher"]
    for part in corpus.parts:
        outputs = [
            path.with_suffix("") if path.suffix == ".gz" else path
            for path in corpus.outputs(here, part)
        ]
        for i, output in enumerate(outputs):
            packed = Path(f"{output}.gz")
            data = gzip.decompress(packed.read_bytes()) if packed.is_file() else output.read_bytes()
            lines = data.decode().replace(" '", "'").splitlines(keepends=True)
            # All pieces of a part follow one another.
            cuts = [0, *(len(lines) * (n + 1) // len(part.pieces) for n in range(len(part.pieces)))]
            for piece, begin, end in zip(part.pieces, cuts, cuts[1:], strict=False):
                put(mirror / piece[i], "".join(lines[begin:end]))


def test_fisher_is_the_one_of_the_experiments(shared: Path, tmp_path: Path) -> None:
    write_fisher(shared, tmp_path / "mirror")
    mirror = (tmp_path / "mirror").as_uri()
    fetch(CORPORA["fisher"], tmp_path / "out", base_url=mirror, log=lambda _: None)
    here = shared / "data" / "fisher-es-en"
    for part in ("train", "dev", "devtest", "test"):
        assert read_corpus(*find_files(tmp_path / "out", part, "es", "en")) == read_corpus(
            *find_files(here, part, "es", "en")
        )


@pytest.mark.parametrize("part", ["train", "dev", "devtest", "test"])
def test_another_version_of_fisher(fisher_mirror: Path, tmp_path: Path, part: str) -> None:
    """One word that differs in one part is noticed, whatever the others are."""
    corpus = CORPORA["fisher"]
    known = fetch(
        corpus, tmp_path / "a", base_url=fisher_mirror.as_uri(), check=False, log=lambda _: None
    )
    parts = tuple(
        replace(
            p,
            sha256=tuple(
                hashlib.sha256("".join(s).encode()).hexdigest()
                for s in written_lines(known[p.name])
            ),
        )
        for p in corpus.parts
    )
    made_up = replace(corpus, parts=parts)
    out = tmp_path / "out"
    fetch(made_up, out, base_url=fisher_mirror.as_uri(), log=lambda _: None)
    shutil.rmtree(out)
    last = next(p for p in corpus.parts if p.name == part).pieces[-1][-1]
    path = fisher_mirror / last
    path.write_text(path.read_text().replace("adiós", "Adiós,"))
    with pytest.raises(InputError, match=f"{part}.en.*: would have the sha256 .* another version"):
        fetch(made_up, out, base_url=fisher_mirror.as_uri(), log=lambda _: None)
    assert not out.exists()
    with pytest.raises(InputError, match="train.es.gz: would have the sha256"):
        fetch(corpus, out, base_url=fisher_mirror.as_uri(), log=lambda _: None)
