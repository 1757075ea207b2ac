"""Archives: what is written is read, what is damaged or something else is refused, whole or not."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from torchtune_smt.cli.hydra_main import error_line
from torchtune_smt.core import archive
from torchtune_smt.core.archive import (
    ALIGNMENT,
    Archive,
    Mark,
    OtherVersionError,
    checksum,
    file_checksum,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import reading, writing
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.runs.checkpoint import NameFile

ARCHIVE = Archive("test file", 3, "write it again")
RECORD = np.dtype([("key", "<i8"), ("counts", "<i4", (3,)), ("flag", "?")])
TYPES = [np.dtype(t) for t in "? i1 u1 <i2 <u2 <i4 <u4 <i8 <u8 <f4 <f8".split()]
MAGIC = 15
ROOM = 50_000


def example():
    records = np.zeros(5, RECORD)
    records["key"], records["counts"] = np.arange(5), np.arange(15).reshape(5, 3)
    return {
        "numbers": np.arange(12.0).reshape(3, 4),
        "records": records,
        "none": np.empty((0, 3), np.int32),
    }


@pytest.fixture
def path(tmp_path):
    ARCHIVE.write(tmp_path / "file", {"a": [1, None]}, example())
    return tmp_path / "file"


def changed(path, part):
    """Return a file with a bit of a part changed."""
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(part.tobytes())] ^= 1
    return damaged


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@given(
    arrays=st.dictionaries(
        st.text(),
        st.sampled_from([*TYPES, RECORD]).flatmap(
            lambda t: arrays_of.arrays(t, arrays_of.array_shapes(min_dims=0, min_side=0))
        ),
    ),
    content=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_what_is_written_is_read(tmp_path_factory, arrays, content):
    path = tmp_path_factory.mktemp("archive") / "file"
    digest = ARCHIVE.write(path, content, arrays)
    found = ARCHIVE.read(path)
    assert found.content == content
    assert found.checksum == digest
    assert_same(found.arrays, arrays)
    for array in found.arrays.values():
        assert array.flags.writeable or not array.size
        assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0


def test_content_and_its_checksum(path, tmp_path):
    ARCHIVE.read(path).arrays["numbers"][:] = 7
    whole, other, there = ARCHIVE.read(path), example(), tmp_path / "b"
    assert_same(whole.arrays, other)
    assert file_checksum(path) == checksum(path.read_bytes())
    assert ARCHIVE.write(there, {"a": [1, None]}, other) == whole.checksum
    assert path.read_bytes() == there.read_bytes()
    other["records"]["counts"][2, 1] += 1
    assert ARCHIVE.write(there, {"a": [1, None]}, other) != whole.checksum
    there.write_bytes(bytes(3 << 20) + b"x")
    assert file_checksum(there) == checksum(bytes(3 << 20) + b"x")
    # A damaged part is named.
    path.write_bytes(changed(path, np.array([11.0])))
    with pytest.raises(InputError, match="numbers"):
        ARCHIVE.read(path)


# Forms of one file: how it is written, and how it is read.


def _written(path):
    ARCHIVE.write(path, {"a": [1, None]}, example())
    return lambda: _plain(ARCHIVE.read(path))


def _appended(path):
    mark = Mark()
    for number in range(3):
        mark = ARCHIVE.append(path, mark, number, {"a": np.arange(3 * number)})
    return lambda: [_plain(part) for part in ARCHIVE.parts(path, mark=mark)]


def _json(path):
    ARCHIVE.write_json(path, {"a": [1, None], "b": "text"})
    return lambda: ARCHIVE.read_json(path)


def _plain(part):
    return part.content, {name: a.tobytes() for name, a in part.arrays.items()}


FORMS = {"written": _written, "appended": _appended, "json": _json}


def _flipped(whole):
    for place in range(len(whole)):
        yield whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "flipped": _flipped,
    "truncated": lambda whole: (whole[:length] for length in range(len(whole))),
    "longer": lambda whole: iter([whole + b"\0", whole + whole, b"\0" + whole]),
    "foreign": lambda _: iter([b"", b"{", b"[]", b"{}", b"\xff", b"PK\x03\x04" * 100, b'{"a": 3}']),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("form", FORMS)
def test_damage_is_refused_or_has_no_effect(tmp_path, form, damage):
    path = tmp_path / "file"
    read = FORMS[form](path)
    whole, expected = path.read_bytes(), read()
    harmless = count = 0
    for damaged in DAMAGE[damage](whole):
        path.write_bytes(damaged)
        count += 1
        try:
            found = read()
        except InputError as error:
            assert str(error).startswith(f"{path}: ") and "; write it again" in str(error)
            continue
        # In the zeros between parts, or between the words of JSON; and what is behind a mark.
        assert found == expected
        harmless += 1
    if damage == "flipped":
        assert harmless < count / 2
    else:
        assert harmless <= {"longer": 2, "truncated": 1}.get(damage, 0) * (form != "written")


def test_other_kinds_and_versions(path):
    with pytest.raises(InputError, match="is no checkpoint; start anew"):
        Archive("checkpoint", 3, "start anew").read(path)
    with pytest.raises(OtherVersionError, match=r"test file of version 3, .* version 4; again"):
        Archive("test file", 4, "again").read(path)
    ARCHIVE.write_json(path, {})
    with pytest.raises(OtherVersionError, match=r"test file of version 3, .* version 4; again"):
        Archive("test file", 4, "again").read_json(path)
    for read in (ARCHIVE.read, ARCHIVE.read_json, ARCHIVE.parts):
        with pytest.raises(InputError, match="nothing: no such file"):
            read(path.with_name("nothing"))
        with pytest.raises(InputError, match="is a folder"):
            read(path.parent)


def test_objects_are_never_made(path):
    """Not even of a file whose checksums are right."""
    for kind in ("|O", "<M8[s]", [["x", "|O", []]]):
        part = {"name": "a", "type": kind, "shape": [0], "checksum": checksum(b"")}
        header = {"kind": "test file", "version": 3, "content": 1, "arrays": [part]}
        text = json.dumps(header).encode()
        start = path.read_bytes()[:MAGIC] + struct.pack("<Q", len(text))
        path.write_bytes(start + xxhash.xxh3_128(text).digest() + text)
        with pytest.raises(InputError, match="damaged"):
            ARCHIVE.read(path)


@pytest.mark.parametrize(
    ("owner", "step"), [(Path, "open"), (os, "fsync"), (Path, "replace")], ids=str
)
def test_a_full_disk_keeps_the_old_file(path, monkeypatch, owner, step):
    whole = path.read_bytes()
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(owner, step, full)
        with pytest.raises(InputError, match="make room on the disk"):
            ARCHIVE.write(path, 1, example())
    assert path.read_bytes() == whole
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_a_large_file_is_verified_once(path, tmp_path, monkeypatch):
    caches = tmp_path / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.setattr(archive, "_PIECE", 64)
    # What could have been written to just now is not remembered.
    ARCHIVE.read(path).accept()
    assert not caches.exists()
    monkeypatch.setattr(archive, "_SETTLED", 0)
    assert not ARCHIVE.read(path).trusted and not ARCHIVE.read(path).trusted
    ARCHIVE.read(path).accept()
    found = ARCHIVE.read(path)
    assert found.trusted and oct((caches / "torchtune_smt").stat().st_mode)[-3:] == "700"
    assert_same(found.arrays, example())
    # Damage, its time set back: who changes a file cannot set back when it was changed.
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    damaged = changed(path, found.arrays["records"])
    with path.open("r+b") as file:
        file.write(damaged)
    os.utime(path, ns=times)
    with pytest.raises(InputError, match="records"):
        ARCHIVE.read(path)
    ARCHIVE.write(path, 1, example())
    assert not ARCHIVE.read(path).trusted
    monkeypatch.setattr(archive, "_REMEMBERED", 2)
    for _ in range(3):
        ARCHIVE.write(path, 1, example())
        ARCHIVE.read(path).accept()
        assert ARCHIVE.read(path).trusted
    assert len(list((caches / "torchtune_smt" / "verified").iterdir())) == 2


def test_pages_of_a_verified_file_are_let_go(tmp_path):
    size = 1 << 25
    path, array = tmp_path / "file", np.arange(size, dtype=np.uint8)
    ARCHIVE.write(path, 1, {"numbers": array})

    def resident():
        lines = Path("/proc/self/smaps").read_text().split(str(path))
        return 1024 * int(lines[1].partition("Rss:")[2].split()[0])

    stored = ARCHIVE.read(path)
    assert resident() < size / 8
    assert np.array_equal(stored.arrays["numbers"], array) and resident() >= size
    stored.accept()
    assert resident() < size / 8
    assert np.array_equal(stored.arrays["numbers"], array)


def test_a_mapped_file_is_not_open(path):
    before = len(os.listdir("/proc/self/fd"))
    read_ = [ARCHIVE.read(path) for _ in range(40)]
    assert len(os.listdir("/proc/self/fd")) == before
    mapped = Path("/proc/self/maps").read_text().count(str(path))
    path.unlink()
    # Arrays alone hold the pages.
    arrays = [stored.arrays for stored in read_]
    del read_
    gc.collect()
    for found in arrays:
        assert_same(found, example())
        found["numbers"][:] = 3
    del arrays, found
    gc.collect()
    assert mapped == 40 and str(path) not in Path("/proc/self/maps").read_text()


def test_too_many_open_files_have_a_cure_of_their_own():
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for use in (reading, writing):
        with pytest.raises(InputError, match=r"ulimit -n"), use("file"):
            raise error
    assert "Too many open files; " in error_line(error) and "ulimit -n" in error_line(error)


# What is appended.


@settings(max_examples=50)
@given(st.data())
def test_what_a_mark_says_is_there_whatever_came_later(tmp_path_factory, data):
    """Processes append, die with or without a checkpoint, or in the middle of a write."""
    folder = tmp_path_factory.mktemp("names")
    path = folder / "c.names"
    file, features = NameFile(folder / "c"), Vocabulary()
    recorded, saved = file.append(features), list[str]()
    for step in data.draw(st.lists(st.sampled_from(["save", "append", "die", "tear"]))):
        features.intern(data.draw(st.lists(st.text(max_size=3), max_size=5)))
        if step in ("save", "append"):
            found = file.append(features)
        if step == "save":
            recorded, saved = found, features.names(range(len(features)))
        if step == "tear":
            more = path.read_bytes()[recorded[1] :]
            more = more[: data.draw(st.integers(0, len(more)))] + data.draw(st.binary(max_size=9))
            path.write_bytes(path.read_bytes()[: recorded[1]] + more)
        if step in ("die", "tear"):
            file = NameFile(folder / "c")
            features = file.read(recorded)
            # The next names take the place of what was not saved.
            features.intern([f"name {len(features)}"])
            assert file.append(features)[1] == path.stat().st_size
        again = NameFile(folder / "c").read(recorded)
        assert again.names(range(len(again))) == saved


def test_a_last_part_that_a_kill_has_cut_off_is_none(tmp_path):
    path = tmp_path / "file"
    marks = [Mark(0, "of a checkpoint")]
    for number in range(3):
        marks.append(ARCHIVE.append(path, marks[-1], number, {"a": np.arange(9)}, durable=False))
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = [part.content for part in ARCHIVE.parts(path, "of a checkpoint")]
        assert len(found) == sum(length >= mark.size for mark in marks[1:])
    assert ARCHIVE.parts(path, "of another checkpoint") == []
    # Damage is none of a kill's.
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):
            found = [part.content for part in ARCHIVE.parts(path, "of a checkpoint")]
            assert found == [0, 1, 2][: len(found)]


def test_parts_of_another_file_do_not_follow(tmp_path):
    files = []
    for name in "ab":
        first = ARCHIVE.append(tmp_path / name, Mark(), name)
        files.append((first, ARCHIVE.append(tmp_path / name, first, "second")))
    whole = [(tmp_path / name).read_bytes() for name in "ab"]
    assert files[0][0].size == files[1][0].size
    place = files[0][0].size
    (tmp_path / "a").write_bytes(whole[0][:place] + whole[1][place:])
    for mark in (None, *files[0]):
        with contextlib.nullcontext() if mark == files[0][0] else pytest.raises(InputError):
            ARCHIVE.parts(tmp_path / "a", mark=mark)


def test_without_room_what_was_there_stays(tmp_path):
    path = tmp_path / "file"
    mark = ARCHIVE.append(path, Mark(), 1, example())
    whole, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    # A part of it can still be written.
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, limits[1]))
    try:
        with pytest.raises(InputError, match="file: cannot be written.*make room on the disk"):
            ARCHIVE.append(path, mark, 2, {"a": np.zeros(ROOM)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    end = ARCHIVE.append(path, mark, 2, {"a": np.zeros(ROOM)})
    assert len(ARCHIVE.parts(path, mark=end)) == 2
