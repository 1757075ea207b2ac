"""Names of features in a file that is only appended to: read back, cut off, damaged, no room."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.runs import name_file
from torchtune_smt.runs.name_file import NameFile


def names_of(features: Vocabulary) -> list[str]:
    return features.names(range(len(features)))


def read(path: Path, recorded: Any) -> list[str]:
    return names_of(NameFile(path).read(recorded, "start anew"))


@settings(max_examples=50)
@given(st.data())
def test_what_a_checkpoint_has_recorded_is_there_whatever_came_later(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Processes append, die with or without a checkpoint, or in the middle of a write."""
    path = tmp_path_factory.mktemp("names") / "names"
    file, features = NameFile(path), Vocabulary()
    recorded, saved = file.append(features), list[str]()
    for step in data.draw(st.lists(st.sampled_from(["save", "append", "die", "tear"]))):
        features.intern(data.draw(st.lists(st.text(max_size=3), max_size=5)))
        if step in ("save", "append"):
            found = file.append(features)
        if step == "save":
            recorded, saved = found, names_of(features)
        if step == "tear":
            more = path.read_bytes()[recorded["size"] :]
            more = more[: data.draw(st.integers(0, len(more)))] + data.draw(st.binary(max_size=9))
            path.write_bytes(path.read_bytes()[: recorded["size"]] + more)
        if step in ("die", "tear"):
            file = NameFile(path)
            features = file.read(recorded, "start anew")
            # The next names take the place of what was not saved.
            features.intern([f"name {len(features)}"])
            assert file.append(features)["size"] == path.stat().st_size
        assert read(path, recorded) == saved
    last = file.append(features)
    assert read(path, last) == names_of(features)


def test_many_names_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = Vocabulary([f"f{i}" for i in range(25)])
    whole = NameFile(tmp_path / "whole").append(features)
    monkeypatch.setattr(name_file, "_PIECE", 10)
    assert NameFile(tmp_path / "pieces").append(features) == whole
    assert read(tmp_path / "pieces", whole) == names_of(features)


def test_names_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "names"
    file, features = NameFile(path), Vocabulary(["dense", "x"])
    size = file.append(features)["size"]
    path.write_bytes(bytes(size))
    assert file.append(features)["size"] == size
    features.intern(["new"])
    assert file.append(features)["size"] == size + 4
    assert path.read_bytes() == bytes(size) + b"new\xff"


def test_a_new_run_begins_the_file_anew(tmp_path: Path) -> None:
    path = tmp_path / "names"
    NameFile(path).append(Vocabulary(["of a run that died", "before its first checkpoint"]))
    recorded = NameFile(path).append(Vocabulary(["a"]))
    assert path.read_bytes() == b"a\xff"
    assert read(path, recorded) == ["a"]


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "names"
    return path, NameFile(path).append(Vocabulary(["dense", "straße", "", "x\ny"]))


def test_every_flipped_bit_is_seen(written: tuple[Path, dict[str, Any]]) -> None:
    path, recorded = written
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="names: is damaged; start anew$"):
            read(path, recorded)


def test_a_short_file_and_a_missing_one(written: tuple[Path, dict[str, Any]]) -> None:
    path, recorded = written
    path.write_bytes(path.read_bytes()[:-1])
    said = r"names: is damaged: it has 18 bytes, and 19 belong to the checkpoint .*; start anew$"
    with pytest.raises(InputError, match=said):
        read(path, recorded)
    path.unlink()
    with pytest.raises(InputError, match="names: is missing, .*; put it back, or start anew$"):
        read(path, recorded)


@pytest.mark.parametrize(
    "other", [None, {}, {"count": 1.5}, {"count": 3}, {"size": -1}, {"size": 2**70}]
)
def test_what_no_file_has_returned(written: tuple[Path, dict[str, Any]], other: Any) -> None:
    path, recorded = written
    with pytest.raises(ValueError, match="the saved state is damaged"):
        read(path, recorded | other if other else other)


@pytest.mark.parametrize("text", [b"a\xffb", b"a\xffa\xff", b"\xc3\xff\xa4\xff"])
def test_names_that_are_none_though_the_checksum_is_right(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "names").write_bytes(text)
    digest = xxhash.xxh3_128(text).hexdigest()
    with pytest.raises(ValueError, match=r"the saved state is damaged|the stored vocabulary"):
        read(tmp_path / "names", {"count": 2, "size": len(text), "checksum": digest})


def test_without_room_what_was_there_stays(written: tuple[Path, dict[str, Any]]) -> None:
    path, recorded = written
    whole = path.read_bytes()
    file = NameFile(path)
    features = file.read(recorded, "")
    features.intern(["n" * 100_000, "and one more"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A part of it can still be written.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"names: cannot be written \(.*make room on the disk"):
            file.append(features)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    assert read(path, file.append(features)) == names_of(features)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "names").symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match="names: cannot be written"):
        NameFile(tmp_path / "names").append(Vocabulary(["a"]))
    assert (tmp_path / "other").read_text() == "mine"
