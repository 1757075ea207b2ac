"""Containers: what is written is read, and what is damaged, or something else, is refused."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from torchtune_smt.cli.hydra_main import error_line
from torchtune_smt.core.container import (
    ALIGNMENT,
    Container,
    accepted_files,
    checksum,
    file_checksum,
    read_container,
    trusting,
    write_container,
)
from torchtune_smt.core.errors import InputError

RECORD = np.dtype([("key", "<i8"), ("counts", "<i4", (3,)), ("flag", "?")])
TYPES = [np.dtype(t) for t in "? i1 u1 <i2 <u2 <i4 <u4 <i8 <u8 <f4 <f8".split()]
MAGIC = 15


def read(path: Path) -> Container:
    return read_container(path, "test file", 3, cure="write it again")


def example() -> dict[str, NDArray[Any]]:
    records = np.zeros(5, RECORD)
    records["key"], records["counts"] = np.arange(5), np.arange(15).reshape(5, 3)
    return {
        "numbers": np.arange(12.0).reshape(3, 4),
        "records": records,
        "none": np.empty((0, 3), np.int32),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_container(tmp_path / "file", "test file", 3, {"a": [1, None]}, example())
    return tmp_path / "file"


def assert_same(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
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
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, NDArray[Any]], content: object
) -> None:
    path = tmp_path_factory.mktemp("container") / "file"
    digest = write_container(path, "test file", 3, content, arrays)
    found = read(path)
    assert found.content == content
    assert found.checksum == digest
    assert_same(found.arrays, arrays)
    for array in found.arrays.values():
        assert array.flags.writeable or not array.size
        assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0


def test_arrays_are_private(path: Path) -> None:
    read(path).arrays["numbers"][:] = 7
    assert_same(read(path).arrays, example())


def test_equal_content_has_an_equal_checksum_and_no_other(path: Path, tmp_path: Path) -> None:
    whole = read(path).checksum
    other = example()
    assert write_container(tmp_path / "b", "test file", 3, {"a": [1, None]}, other) == whole
    assert path.read_bytes() == (tmp_path / "b").read_bytes()
    other["records"]["counts"][2, 1] += 1
    assert write_container(tmp_path / "b", "test file", 3, {"a": [1, None]}, other) != whole


def test_a_flipped_bit_is_found_or_has_no_effect(path: Path) -> None:
    whole = path.read_bytes()
    harmless = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = read(path)
        except InputError as error:
            assert "write it again" in str(error)
            continue
        assert found.content == {"a": [1, None]}
        assert_same(found.arrays, example())
        harmless += 1
    # The zeros between the parts.
    assert 0 < harmless < 3 * ALIGNMENT


def test_each_truncation_and_what_is_added_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="is damaged.*; write it again"):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InputError, match="does not end where it should; write it again"):
        read(path)


def test_a_damaged_part_is_named(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[whole.index(struct.pack("<d", 11.0))] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError, match="file: is damaged in its part 'numbers'; write it again"):
        read(path)


def test_other_kinds_and_versions(path: Path) -> None:
    with pytest.raises(InputError, match="is no checkpoint; start anew"):
        read_container(path, "checkpoint", 3, cure="start anew")
    with pytest.raises(
        InputError, match="is a test file of version 3, and this package reads version 4; again"
    ):
        read_container(path, "test file", 4, cure="again")
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(InputError, match="damaged, or no test file of this version of the package"):
        read(path)
    with pytest.raises(InputError, match="nothing: no such file"):
        read(path.with_name("nothing"))
    with pytest.raises(InputError, match="is a folder"):
        read(path.parent)


def forged(path: Path, header: object) -> Path:
    """Write a file whose header has a checksum that is right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    magic = path.read_bytes()[:MAGIC]
    digest = xxhash.xxh3_128(text).digest()
    path.write_bytes(magic + struct.pack("<Q", len(text)) + digest + text)
    return path


def test_a_forged_header_is_refused(path: Path) -> None:
    def part(**changes: object) -> dict[str, object]:
        plain = {"name": "a", "type": "<i8", "shape": [0], "checksum": checksum(b"")}
        return {"kind": "test file", "version": 3, "content": 1, "arrays": [plain | changes]}

    for shape in ([-1], [2**60], [2**47, 2**47], [True], ["1"], [1.0], 3, None, [0] * 9):
        with pytest.raises(InputError, match="damaged"):
            read(forged(path, part(shape=shape)))
    record = [["x", "<i4", [2**30]]]
    types = ["|O", "O", "<i3", "<U3", "<M8[s]", None, 3, [["x", "|O", []]], [["x"]], [3], record]
    for kind in types:
        with pytest.raises(InputError, match="damaged"):
            read(forged(path, part(type=kind, shape=[1])))
    twice = part()
    twice["arrays"] *= 2  # type: ignore[operator]
    others: list[object] = [b"", b"{", b"[" * 100_000, b"\xff", [], {}, 3, part(checksum=7), twice]
    others += [part() | {"arrays": 3}, part() | {"arrays": [3]}, part(name=None)]
    for header in others:
        with pytest.raises(InputError, match="damaged"):
            read(forged(path, header))


def test_the_checksum_of_a_file(path: Path, tmp_path: Path) -> None:
    assert file_checksum(path) == checksum(path.read_bytes())
    (tmp_path / "large").write_bytes(bytes(3 << 20) + b"x")
    assert file_checksum(tmp_path / "large") == checksum(bytes(3 << 20) + b"x")


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_keeps_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    whole = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step == "write":
        monkeypatch.setattr(Path, "open", lambda self, mode="r": full())
    elif step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device.*make room on the disk"):
        write_container(path, "test file", 3, 1, example())
    monkeypatch.undo()
    assert path.read_bytes() == whole
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_trusted_files_are_not_verified(path: Path) -> None:
    """As long as they are the same ones: damage is found again when a file has changed."""
    stored = read(path)
    assert stored.identity not in accepted_files()
    stored.accept()
    assert stored.identity in accepted_files()
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(stored.arrays["records"].tobytes())] ^= 1
    path.write_bytes(damaged)
    times = path.stat().st_atime_ns, stored.identity.time
    os.utime(path, ns=times)
    with trusting([stored.identity]):
        trusted = read(path)
        assert trusted.trusted
        assert trusted.arrays["numbers"].tolist() == stored.arrays["numbers"].tolist()
        os.utime(path, ns=(times[0], times[1] + 1))
        with pytest.raises(InputError, match="is damaged in its part 'records'"):
            read(path)
    os.utime(path, ns=times)
    with pytest.raises(InputError, match="is damaged in its part 'records'"):
        read(path)
    # The header, which says what there is, is always read.
    damaged[40] ^= 1
    path.write_bytes(damaged)
    os.utime(path, ns=times)
    with trusting([stored.identity]), pytest.raises(InputError, match="is damaged"):
        read(path)


def test_a_mapped_file_is_not_open(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    read_ = [read(path) for _ in range(40)]
    assert len(os.listdir("/proc/self/fd")) == before
    mapped = Path("/proc/self/maps").read_text().count(str(path))
    path.unlink()
    # Arrays alone hold the pages.
    arrays = [container.arrays for container in read_]
    del read_
    gc.collect()
    for found in arrays:
        assert_same(found, example())
        found["numbers"][:] = 3
    del arrays, found
    gc.collect()
    assert mapped == 40 and str(path) not in Path("/proc/self/maps").read_text()


def test_too_many_open_files_have_a_cure_of_their_own(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = max(map(int, os.listdir("/proc/self/fd")))
    kept = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 3, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                kept.append(os.open(path, os.O_RDONLY))
        for use in (read, lambda p: write_container(p, "test file", 3, {}, example())):
            with pytest.raises(InputError, match="Too many open files.*ulimit -n"):
                use(path)
        line = error_line(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for handle in kept:
            os.close(handle)
    assert "Too many open files; " in line and "ulimit -n" in line
    assert_same(read(path).arrays, example())
