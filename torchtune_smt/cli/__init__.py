"""The console command ``torchtune-smt``: one subcommand a module of this package."""

import atexit
import gc
import importlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Final

from torchtune_smt import __version__
from torchtune_smt.core.errors import InputError, cure_of, did_you_mean, escaped
from torchtune_smt.core.stopping import (
    CLOSED,
    advice_when_stopped,
    discard_output,
    run_stoppable,
)

COMMANDS: Final = {
    "train": "tune a translation system (Hydra overrides: data=multi30k loss=logistic ...)",
    "build-model": "align a bitext, extract the grammar, estimate the language model",
    "translate": "translate a file with tuned weights",
    "tune": "from n-best lists of any tool to weights, and a report of what was gained",
    "rerank": "apply weights to an n-best list of another decoder",
    "evaluate": "corpus BLEU, chrF, TER, WER of translations, significance of a difference",
    "compare": "runs, sweeps, translations or weights side by side, in tables",
    "analyse": "what features do, and where systems differ: overlap, reordering, explain, ...",
    "plot": "the curves of runs and sweeps in a picture",
    "get-data": "say where the public corpora come from, and fetch them",
}
# Those that are not ``main`` of a module of their name.
_OTHERS: Final = {"evaluate": ("compare", "evaluate")}
# Those that Hydra does not configure.
_PLAIN: Final = ("get-data", "plot")
# Those that import what takes seconds.
_SLOW: Final = ("train", "tune", "build-model", "translate")
_HELP: Final = frozenset({"-h", "--help", "--hydra-help"})


def usage() -> str:
    """Return the help text of the command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: torchtune-smt COMMAND [ARGUMENT ...]",
            "",
            *lines,
            "",
            "torchtune-smt COMMAND --help tells about one command; --version says which this is.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that the first argument names, and return its exit code.

    Its module is imported only now, and its ``main()`` reads its arguments from ``sys.argv``, as
    Hydra does, too. Bad input ends it with one line and exit code 1, Ctrl-C and SIGTERM with one
    line and 130 or 143.
    """
    gc.set_threshold(100_000, 50)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        print(f"torchtune-smt {__version__}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    name = arguments[0]
    if name not in COMMANDS:
        cure = did_you_mean(name, COMMANDS)
        print(f"torchtune-smt: there is no command '{name}'{cure}\n\n{usage()}", file=sys.stderr)
        return 2
    program = f"torchtune-smt {name}"

    def command() -> int:
        with advice_when_stopped(lambda: _again(arguments)):
            sys.argv = [program, *arguments[1:]]
            if name not in _PLAIN and not _HELP.isdisjoint(arguments):
                # Hydra answers, and nothing else has to be imported.
                hydra_main = importlib.import_module(f"{__name__}.hydra_main").hydra_main
                return int(hydra_main(name.replace("-", "_"))(lambda cfg: None)())
            if name in _SLOW and sys.stderr.isatty():
                print("loading PyTorch and the compiled kernels ...", file=sys.stderr, flush=True)
            code = int(_main_of(name)() or 0)
            # Where nobody reads it any more, this is the last moment to say so.
            sys.stdout.flush()
            return code

    _complete_streams()
    before = sys.argv
    try:
        return run_stoppable(program, command)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        discard_output()
        print(f"{program}: {CLOSED}", file=sys.stderr)
        return 1
    except OSError as error:
        # Of the standard output, or of a name that no file can have.
        place = "the standard output" if error.filename is None else error.filename
        cure = cure_of(error)
        text = f"{place}: {error.strerror}" + (f"; {cure}" if cure else "")
        print(f"error: {escaped(text)}", file=sys.stderr)
        if error.filename is None:
            discard_output()
        return 1
    except ModuleNotFoundError as error:
        if (error.name or __name__).partition(".")[0] == __name__.partition(".")[0]:
            raise
        print(
            f"{program}: the module {error.name} is missing; is the environment active that the "
            "package is installed in (source .venv/bin/activate)?",
            file=sys.stderr,
        )
        return 1
    finally:
        sys.argv = before
        if "triton" not in sys.modules:  # which complains of all that is left then
            # Else the interpreter goes through all that torch has made once more when it ends.
            atexit.register(gc.freeze)


def _main_of(name: str) -> Callable[[], int | None]:
    """Return what a subcommand is: ``main`` of its module; ``evaluate`` is ``compare``'s sister."""
    module, function = _OTHERS.get(name, (name.replace("-", "_"), "main"))
    # What is imported is no garbage: to look for some takes a tenth of a short command.
    gc.disable()
    try:
        found: Callable[[], int | None] = getattr(
            importlib.import_module(f"{__name__}.{module}"), function
        )
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
        gc.enable()
    return found


def _complete_streams() -> None:
    """Let all standard streams be there, and text be UTF-8 whatever the locale is, as in files."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # Closed by whoever started the command.
            handle = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            # Names of files may be of other bytes, and are written as they are.
            errors = "surrogateescape" if name == "stdout" else "backslashreplace"
            stream.reconfigure(encoding="utf-8", errors=errors)


def _again(arguments: Sequence[str]) -> str:
    """Return how to go on with a run that was given, and not even opened yet."""
    given = [a.removeprefix("resume=") for a in arguments if a.startswith("resume=")]
    return f"go on with resume={shlex.quote(given[-1])}" if given else ""
