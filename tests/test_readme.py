"""The commands that README.md and docs/ show: scripts, options and choices are those that exist.

They are composed, not run: other tests run such commands on small data.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from torchtune_smt.cli import COMMANDS
from torchtune_smt.cli.command_line import with_plus
from torchtune_smt.cli.options import check_options
from torchtune_smt.core.resources import config_folder
from torchtune_smt.data.corpora import CORPORA
from torchtune_smt.evaluation.analyses import ANALYSES

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = ("python", "make", "torchtune-smt")
CONFIGURED = {"train.py": "train"} | {
    f"scripts/{name}.py": name
    for name in ("build_model", "translate", "evaluate", "compare", "rerank", "tune", "analyse")
}
# Commands that argparse reads.
OTHERS = {
    "scripts/get_data.py": "torchtune_smt/cli/get_data.py",
    "scripts/plot.py": "torchtune_smt/cli/plot.py",
}
FLAGS = {"--help", "-m", "--multirun", "--cfg", "job", "--resolve"}


class Command(NamedTuple):
    """A command as it stands in a page."""

    page: str
    line: int
    words: list[str]

    def __str__(self):
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def code_lines(text):
    """The lines of code blocks, numbered from 1, those that go on with a backslash joined."""
    lines = []
    fenced = going_on = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            continue
        begun = lines.pop() if going_on else (number, "")
        going_on = line.endswith("\\")
        lines.append((begun[0], f"{begun[1]} {line.rstrip(chr(92)).strip()}".strip()))
    return lines


def commands():
    pages = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md"))]
    found = []
    for page in pages:
        for number, line in code_lines(page.read_text(encoding="utf-8")):
            if not re.search(rf"(^|\|\s*)({'|'.join(PROGRAMS)})\s", line):
                continue
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
            lexer.whitespace_split = True
            words = []
            for word in [*lexer, "|"]:
                if word and set(word) <= set("|<>;&"):
                    if words and words[0] in PROGRAMS:
                        found.append(Command(str(page.relative_to(REPOSITORY)), number, words))
                    words = []
                else:
                    words.append(word)
    return found


COMMANDS_SHOWN = commands()


def check_composed(name, arguments):
    """Compose what a command would be run with, for each value of a sweep."""
    if name in ("compare", "evaluate", "analyse"):
        paths = [word for word in arguments if "=" not in word and word not in FLAGS]
        arguments = [word for word in arguments if word not in paths]
        if name == "analyse":
            assert paths[0] in ANALYSES
            arguments.append(f"analysis={paths.pop(0)}")
        arguments += [f"systems=[{','.join(paths)}]"] if paths else []
    overrides = [[]]
    words = iter(arguments)
    for word in words:
        if word in FLAGS or word == "...":
            continue
        if word == "--config-dir":
            folder = REPOSITORY / next(words)
            if not folder.is_dir():
                # A folder that the reader is to make of these files.
                folder = REPOSITORY / "docs" / "examples" / "conf"
            overrides = [[*o, f"hydra.searchpath=[file://{folder}]"] for o in overrides]
            continue
        assert not word.startswith("-"), f"there is no option {word}"
        override = OverridesParser.create().parse_override(word)
        values = [word]
        if override.is_sweep_override():
            key = override.get_key_element()
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
        overrides = [[*o, value] for o in overrides for value in values]
    for chosen in overrides:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            config = compose(name, list(map(with_plus, chosen)))
        if "..." not in arguments:
            check_options(config)


def check_make(words):
    makefile = (REPOSITORY / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        pattern = rf"^{name} \?=" if equals else rf"^{name}:"
        assert re.search(pattern, makefile, re.MULTILINE), f"the Makefile has no {word}"


@pytest.mark.parametrize("command", COMMANDS_SHOWN, ids=str)
def test_command(command):
    program, *words = command.words
    if program == "make":
        check_make(words)
        return
    script, *arguments = words
    if program == "torchtune-smt":
        if script == "--help":
            return
        assert script in COMMANDS
        script = "train.py" if script == "train" else f"scripts/{script.replace('-', '_')}.py"
    assert (REPOSITORY / script).is_file(), f"there is no {script}"
    if script in CONFIGURED:
        check_composed(CONFIGURED[script], arguments)
        return
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    source = (REPOSITORY / OTHERS.get(script, script)).read_text()
    for option in options:
        assert f'"{option}"' in source, f"{script} has no option {option}"
    if script == "scripts/get_data.py" and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in CORPORA


def test_every_script_is_shown():
    shown = {word for command in COMMANDS_SHOWN for word in command.words}
    for script in (*CONFIGURED, *OTHERS):
        if (REPOSITORY / script).is_file():
            assert script in shown, f"neither README.md nor docs/ shows {script}"


def anchors(page):
    """What sections of a page are called in links, as GitHub makes it of their titles."""
    found, fenced = set(), False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (title := re.match(r"#+ (.*)", line)):
            anchor = re.sub(r"[^\w\- ]", "", title[1].strip().lower()).replace(" ", "-")
            assert anchor not in found, f"{page.name} has two sections {title[1]}"
            found.add(anchor)
    return found


def test_files_that_are_named_are_there():
    """By a path from the top, or from the package, or by a name within it."""
    folders = [REPOSITORY / name for name in (".", "torchtune_smt", "tests", "docs/examples")]
    names = {path.name for path in (REPOSITORY / "torchtune_smt").rglob("*.py")}
    # What a reader is to write, a command, and a script of NeMo's.
    names |= {"my_callback.py", "my_tuner.py", "squared_hinge.py", "evaluate.py"}
    names.add("eval_beamsearch_ngram.py")
    for page in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]:
        for name in re.findall(r"`([\w./*-]+\.py)`", page.read_text(encoding="utf-8")):
            kernels = any((REPOSITORY / "torchtune_smt").rglob(name)) if "*" in name else False
            there = name in names or kernels or any(any(f.glob(name)) for f in folders)
            assert there, f"{page.name} names {name}"


def test_links_lead_somewhere():
    for page in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
            if "://" in link:
                continue
            target = (page.parent / link) if link else page
            assert target.exists(), f"{page.name} links to {link}"
            if anchor:
                assert anchor in anchors(target), f"{page.name} links to {link}#{anchor}"
