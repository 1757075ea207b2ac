"""Workers for the tests of engines, which are opened in processes of their own."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from torchtune_smt.core.errors import InputError


@dataclass(frozen=True)
class OpenToy:
    """Opens a worker, in some seconds, that multiplies, and does what a task says before.

    dying: numbers of the openings that the worker does not survive.
    """

    folder: Path
    ballast: bytes = b""
    seconds: float = 0
    dying: tuple[int, ...] = ()

    def __call__(self):
        time.sleep(self.seconds)
        number = len(list(self.folder.glob("opening*")))
        if self.dying:
            (self.folder / f"opening{number}").touch()
        if number in self.dying:
            os.kill(os.getpid(), signal.SIGKILL)

        def once(name):
            """Whether nobody has done this yet."""
            try:
                (self.folder / name).touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        def work(common, task):
            number, what, *_ = task
            if what == "kill" or (what == "kill once" and once(f"killed{number}")):
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "fork and die once" and once(f"forked{number}"):
                # The other one holds all that this one has open.
                child = os.fork()
                if child == 0:
                    time.sleep(1000)
                (self.folder / f"child{child}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang once" and once(f"hung{number}"):
                time.sleep(1000)
            if what == "wait":
                (self.folder / f"waiting{os.getpid()}").touch()
                time.sleep(1000)
            if what == "meet":
                (self.folder / f"met{common}-{number}").touch()
                while len(list(self.folder.glob(f"met{common}-*"))) < 2:
                    time.sleep(0.01)
            time.sleep({"slow": 0.2, "slower": 4}.get(what, 0))
            if what == "bad":
                raise InputError("is bad; make it good", path="file", line=3)
            if what == "bug":
                raise KeyError("a bug")
            if what == "end":
                raise EOFError("no more")
            if what == "exit":
                sys.exit(7)
            return common * number, os.getpid(), *[bytes(8 << 20)] * (what == "long")

        return work
