"""What kills leave behind is removed by the next that writes the same, and nobody else's is."""

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import restored
from torchtune_smt.core.textio import atomic_folder, atomic_path


def start(work):
    """Run in a process of its own, whose id is returned."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def in_child(work):
    """Return how it ended, as `os.waitpid` says it."""
    return os.waitpid(start(work), 0)[1]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def write_file(path, text, at_end=lambda: None):
    with atomic_path(path) as beside:
        beside.write_text(text)
        at_end()


def write_folder(path, text, at_end=lambda: None):
    with atomic_folder(path) as beside:
        (beside / "a").write_text(text)
        (beside / "inner").mkdir()
        (beside / "inner" / "b").write_text(text)
        at_end()


WRITERS = [write_file, write_folder]


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("x", ["x", "a[b]*(c)+ d"])
@pytest.mark.parametrize("write", WRITERS)
def test_the_next_writer_removes_what_a_kill_has_left(write, x, tmp_path):
    mine = {".x.part", ".x.12345678.part.gz", "x.12345678.part", ".x.1234567.part"}
    mine |= {".xy.12345678.part"}
    for name in mine:
        (tmp_path / name).write_text("")
    for _ in range(2):
        assert in_child(lambda: write(tmp_path / x, "new", die)) == signal.SIGKILL
    (left,) = names(tmp_path) - mine  # The second one has removed that of the first.
    assert left.startswith(f".{x}.") and left.endswith(".part")
    for other in ("y", f"{x}.y", f".{x}"):
        write(tmp_path / other, "other")
    assert left in names(tmp_path)
    write(tmp_path / x, "new")
    assert names(tmp_path) == {x, "y", f"{x}.y", f".{x}", *mine}


@pytest.mark.parametrize("write", WRITERS)
def test_what_a_living_process_writes_is_left_alone(write, tmp_path):
    def meanwhile():
        (first,) = names(tmp_path)
        assert in_child(lambda: write(tmp_path / "x", "inner")) == 0
        assert names(tmp_path) == {first, "x"}

    write(tmp_path / "x", "outer", meanwhile)
    assert names(tmp_path) == {"x"}
    content = tmp_path / "x" if write is write_file else tmp_path / "x" / "a"
    assert content.read_text() == "outer"


# The calls that change something while a folder is replaced.
STEPS = [(Path, "rename"), (shutil, "rmtree"), (Path, "chmod"), (os, "unlink"), (os, "rmdir")]


def test_a_kill_at_any_moment_of_a_replacement_loses_nothing(tmp_path):
    path = tmp_path / "model"
    seen = set()
    for moment in range(100):
        shutil.rmtree(path, ignore_errors=True)
        write_folder(path, "old")

        def replace(moment=moment):
            calls = itertools.count()

            def counted(function):
                def call(*arguments, **options):
                    if next(calls) == moment:
                        die()
                    return function(*arguments, **options)

                return call

            def start():
                for owner, name in STEPS:
                    setattr(owner, name, counted(getattr(owner, name)))

            write_folder(path, "new", start)

        ended = in_child(replace)
        assert ended in (0, signal.SIGKILL)
        there = path.exists()
        assert restored(path) == path
        texts = {(path / name).read_text() for name in ("a", "inner/b")}
        assert len(texts) == 1
        seen.add((there, *texts))
        write_folder(path, "next")
        assert names(tmp_path) == {"model"}
        if ended == 0:
            break
    assert ended == 0 and seen == {(True, "old"), (False, "old"), (True, "new")}


def test_what_is_put_back(tmp_path):
    """Only what is whole, and is not just being replaced."""
    model, old = tmp_path / "model", tmp_path / ".model.12345678.old"
    write_folder(old, "old")
    assert not restored(model, "last").exists()
    # A file of the name of a folder.
    (tmp_path / ".model.87654321.old").write_text("")
    assert not restored(model, "last").exists()
    (old / "last").write_text("")
    handle = os.open(old, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert not restored(model, "last").exists()
    os.close(handle)
    assert (restored(model, "last") / "inner" / "b").read_text() == "old"


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_stays_a_link(write, tmp_path):
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    link.symlink_to(real)
    content = real if write is write_file else real / "a"
    for text in ("new", "again"):
        write(link, text)
        assert link.is_symlink()
        assert content.read_text() == text
        assert names(tmp_path / "disk") == {"real"}
    if write is write_folder:
        real.rename(tmp_path / "disk" / ".real.12345678.old")
        assert (restored(link) / "a").read_text() == "again"


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        # Open for both, so that nobody waits for the other side.
        handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        write_file(path, "text")
        assert os.read(handle, 100) == b"text"
        os.close(handle)
    assert pipe.is_fifo() and names(tmp_path) == {"pipe", "link"}
    # The name that the system has for an open pipe leads to no path.
    reader, writer = os.pipe2(os.O_NONBLOCK)
    write_file(Path(f"/dev/fd/{writer}"), "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    os.close(writer)


def plant(path, kind, target):
    """Put something else in the place of a file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(target)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link": target, "device": "/dev/zero", "nowhere": "nowhere"}[kind])


@pytest.mark.parametrize("kind", ["pipe", "link", "folder link", "device", "nowhere", "of others"])
@pytest.mark.parametrize("suffix", ["part", "old"])
@pytest.mark.parametrize("write", WRITERS)
def test_what_was_not_made_here_is_left_alone(write, suffix, kind, tmp_path, monkeypatch):
    thesis, folder, planted = (tmp_path / name for name in ("thesis", "f", f".x.12345678.{suffix}"))
    thesis.write_text("mine")
    folder.mkdir()
    (folder / "inner").write_text("mine")
    if kind == "of others":
        planted.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(planted).st_uid + 1)
    else:
        target = folder if kind == "folder link" else thesis
        plant(planted, kind.removeprefix("folder "), target)
    assert not restored(tmp_path / "x").exists()
    write(tmp_path / "x", "new")
    assert names(tmp_path) == {"thesis", "f", "x", planted.name}
    assert thesis.read_text() == (folder / "inner").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "nowhere", "hard link", "device", "pipe", "folder"])
def test_what_is_no_file_where_the_package_names_it(kind, tmp_path):
    thesis, path = tmp_path / "thesis", tmp_path / "file"
    thesis.write_text("mine")
    plant(path, kind, thesis)
    refused = kind == "folder"
    with (
        pytest.raises(InputError, match="file: is a folder") if refused else nullcontext(),
        atomic_path(path, own=True) as beside,
    ):
        beside.write_text("new")
    assert refused or (path.read_text() == "new" and not path.is_symlink())
    assert thesis.read_text() == "mine" and names(tmp_path) == {"thesis", "file"}
    assert path.is_file() != refused


def test_many_processes_at_once(tmp_path):
    """Each writes the same names again and again; some are killed in the middle."""

    def work(number):
        draw = random.Random(number)
        for _ in range(30):
            write = draw.choice(WRITERS)
            name = "file" if write is write_file else "folder"
            at_end = die if draw.random() < 0.05 else lambda: None
            # Of two folders that are replaced at once, one may find the other in place.
            with contextlib.suppress(InputError):
                write(tmp_path / name, str(number), at_end)

    children = [start(partial(work, number)) for number in range(8)]
    ends = [os.waitpid(pid, 0)[1] for pid in children]
    assert set(ends) <= {0, signal.SIGKILL}
    assert signal.SIGKILL in ends
    write_file(tmp_path / "file", "last")
    assert len({(restored(tmp_path / "folder") / n).read_text() for n in ("a", "inner/b")}) == 1
    write_folder(tmp_path / "folder", "last")
    assert names(tmp_path) == {"file", "folder"}
