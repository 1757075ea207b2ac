"""What is compared: systems, each with the outputs of one run or of several seeds, on one set."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from torchtune_smt.core.errors import InputError, cure_of, escaped, warn
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.text import BLANKS, split_fields, split_words, whole_number
from torchtune_smt.core.textio import AnyPath, UnequalLinesError, iterate_lines, parallel_lines
from torchtune_smt.data.bitext import Corpus, check_length
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.lists import Source
from torchtune_smt.runs.folder import LONGER, RECORDS, WEIGHTS
from torchtune_smt.runs.records import lacks_words, recorded_data, recorded_overrides

if TYPE_CHECKING:
    from torchtune_smt.core.snapshot import FrozenWeights
    from torchtune_smt.decoders.base import Decoder

WITHOUT_EFFECT: Final = ("resume", "overwrite", "threads", "callbacks", "report")
"""Options that change nothing in what comes out of a run."""

Kind = Literal["run", "weights", "lists", "translations"]


@dataclass(frozen=True)
class Output:
    """What one run of a system left: its folder, or a file of it.

    overrides: of a run's command line, by their options; its seed and Hydra's are left out.
    """

    path: Path
    kind: Kind
    overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    seed: str = ""

    @property
    def folder(self) -> Path | None:
        """The run's folder, where it is known."""
        if self.kind == "run":
            return self.path
        return self.path.parent if self.kind == "weights" else None

    @property
    def weights(self) -> Path | None:
        """The file of its weights, where it is known."""
        if self.kind == "run":
            return self.path / WEIGHTS
        return self.path if self.kind == "weights" else None

    def own_weights(self, split: str) -> Path:
        """Return the file of weights that are to decode a set; InputError: it is not known."""
        if self.weights is None:
            message = f"lies in no run's folder, and cannot decode {split}; give a run"
            raise InputError(message, path=self.path)
        return self.weights

    @property
    def data(self) -> dict[str, Any] | None:
        """The options of the group ``data`` that the run recorded, if there is one that did."""
        return None if self.folder is None else recorded_data(self.folder)

    def translations(self, split: str) -> Path:
        """Return the file of its translations of a set, which need not be there."""
        return self.path / f"{split}.translations.txt" if self.kind == "run" else self.path

    @property
    def is_recorded(self) -> bool:
        """Whether the run's command line, and so its seed, is known."""
        return self.folder is not None and (self.folder / RECORDS).is_dir()


class Outputs(NamedTuple):
    """What systems made of some sentences.

    translations: one a sentence.
    references: of each sentence.
    corpus: the set that was translated, where the data are known.
    lists: all hypotheses of each sentence, where there are lists.
    """

    translations: dict[Output, list[str]]
    references: list[list[str]]
    corpus: Corpus | None
    lists: dict[Output, list[list[str]]]


def found_systems(
    named: Mapping[str, Sequence[str]], *, group_seeds: bool = True, marker: str = WEIGHTS
) -> dict[str, list[Output]]:
    """Return the outputs of each system by its name, which paths have, or are given for ``""``.

    Systems that have names keep them, and have all outputs that are found under theirs. Otherwise a
    file is a system of its own, with its path for a name. Runs whose command lines differ in the
    seed alone are one system (unless not `group_seeds`), named after the overrides that others do
    not have. A folder with the `marker` is that of a run; by default of one that is finished.
    """
    found = {
        name: [output for path in paths for output in _outputs(Path(path), marker)]
        for name, paths in named.items()
    }
    places = [output.path.resolve() for outputs in found.values() for output in outputs]
    if twice := _repeated(places):
        raise InputError(f"a run or a file is named twice: {', '.join(twice)}")
    return _named(found[""], group_seeds) if list(found) == [""] else found


def _repeated(things: Iterable[object]) -> list[str]:
    return [str(thing) for thing, count in Counter(things).items() if count > 1]


def _named(outputs: Sequence[Output], group_seeds: bool) -> dict[str, list[Output]]:
    groups: dict[tuple[str, ...], list[Output]] = {}
    for output in outputs:
        if not output.is_recorded:
            key: tuple[str, ...] = (str(output.path),)
        else:
            # In whatever order they were given.
            key = tuple(override for _, override in sorted(output.overrides.items()))
            if not group_seeds:
                key = (*key, f"seed={output.seed}" if output.seed else "")
        groups.setdefault(key, []).append(output)
    runs = [set(key) for key, group in groups.items() if group[0].is_recorded]
    common = set.intersection(*runs) if runs else set()
    systems: dict[str, list[Output]] = {}
    for key, group in groups.items():
        name = str(group[0].path)
        if group[0].is_recorded:
            given = [o for o in group[0].overrides.values() if o not in common]
            own = " ".join([*given, *(o for o in key if o and o not in (*common, *given))])
            if own:
                name = own
            elif len(groups) == 1:
                # One run, or a sweep over seeds: all overrides are common.
                name = os.path.commonpath([output.path for output in group])
            elif len(group) > 1:
                name = " ".join(key)
            name = name or "default"
            if _repeated(output.seed for output in group):
                warn([f"{name}: two runs have the same seed, and count as two all the same"])
        systems[name] = group
    return systems


def _outputs(path: Path, marker: str) -> Iterator[Output]:
    """Yield what a path leads to: a run, the runs of a sweep, or a file."""
    # Before anything else is said of it.
    if not path.exists():
        raise InputError("no such file; check the path", path=path)
    if not path.is_dir():
        first, names = _first_line(path), (WEIGHTS, Path(WEIGHTS).stem)
        if path.name in names or first.startswith("# torchtune_smt weights"):
            yield _of_folder(path, path.parent, "weights")
        else:
            yield Output(path, "lists" if is_list_line(first) else "translations")
        return
    folders = [path]
    if not (path / marker).is_file():
        files = filter(Path.is_file, below(path, marker))
        folders = sorted((found.parent for found in files), key=_natural)
    if not folders:
        raise InputError(
            f"holds no run with {marker}; give the folder of a run or of a sweep, or a file",
            path=path,
        )
    started = {found.parent for found in below(path, RECORDS)}.difference(folders)
    warn(f"{folder}: is not finished, and is left out" for folder in sorted(started))
    yield from (_of_folder(folder, folder, "run") for folder in folders)


def below(path: Path, name: str) -> Iterator[Path]:
    """Yield what has a name below a folder; links to folders are followed, each folder once."""
    seen = set()
    for where, folders, files in os.walk(path, onerror=_refuse_unreadable, followlinks=True):
        place = os.path.realpath(where)
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        if name in folders or name in files:
            yield Path(where, name)


def _refuse_unreadable(error: OSError) -> None:
    """Raise InputError if a folder cannot be read: a run in it would be missing without a word."""
    # A run that is at work may have removed it meanwhile.
    if not isinstance(error, FileNotFoundError):
        raise InputError(
            f"cannot be read ({error.strerror}), and there may be runs in it; "
            + cure_of(error, "make it readable, or name the folders of the runs themselves"),
            path=error.filename,
        ) from None


def _of_folder(path: Path, folder: Path, kind: Kind) -> Output:
    if (folder / LONGER).exists():
        warn([f"{folder}: is being made longer, and what it has is of the shorter run"])
    # Shown in tables: a run's folder may come from anybody. The last of an option counts.
    given = [escaped(override) for override in recorded_overrides(folder)]
    last = {re.split("[=@]", override.lstrip("+~"))[0]: override for override in given}
    seed = last.pop("seed", "").partition("=")[2]
    kept = {
        option: override
        for option, override in last.items()
        if option not in WITHOUT_EFFECT and not override.startswith("hydra.")
    }
    return Output(path, kind, kept, seed)


def _first_line(path: Path) -> str:
    """Return the first line of a plain file, if there is one; a pipe can be read only once."""
    return next(iter(iterate_lines(path)), "") if path.is_file() else ""


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Return a key that sorts run 10 behind run 9."""
    parts = re.split(r"(\d+)", str(path))
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def is_list_line(line: str) -> bool:
    """Return whether a line is one of an n-best list, by its first fields."""
    fields = split_fields(line)
    return len(fields) > 2 and whole_number(fields[0].strip(BLANKS)) is not None


def check_text(path: AnyPath, lines: Sequence[str]) -> None:
    """Raise InputError if a file is in another form than plain text, a sentence a line."""
    filled = [line.strip() for line in lines if line.strip()]
    for form, has in _FORMS.items():
        # What is written over several lines is a whole alone.
        several = form in ("JSON", "markup") and has("\n".join(filled))
        if filled and (several or all(map(has, filled))):
            raise InputError(
                f"holds {form}, and no plain text; write one sentence a line, and nothing else",
                path=path,
            )


def _is_json(text: str) -> bool:
    try:
        return text[:1] in ("{", "[", '"') and json.loads(text) is not None
    except (ValueError, RecursionError):
        return _PYTHON.fullmatch(text) is not None


# A list of strings as Python prints it.
_PYTHON: Final = re.compile(r"""\[("[^"]*"|'[^']*')(, ("[^"]*"|'[^']*'))*\]""")
_NUMBER: Final = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?|nan|[-+]?inf")
# What all lines of a file may have, and those of a text do not.
_FORMS: Final[Mapping[str, Callable[[str], object]]] = {
    "JSON": _is_json,
    "fields between ||| (an n-best list begins with the number of the sentence)": (
        lambda line: "|||" in split_words(line)
    ),
    "columns between tabs": lambda line: "\t" in line,
    "markup": re.compile(r"(<[?!][^>]*>\s*)*<(\w+)\b.*</\2>", re.S).fullmatch,
    "numbers": lambda line: all(map(_NUMBER.fullmatch, split_words(line))),
}


def of_skipped(corpus: Corpus | None, count: int) -> str:
    """Return what is added on lines that data.empty=skip left out, where a count has them."""
    if corpus is None or not corpus.dropped or count != corpus.total:
        return ""
    return (
        "; data.empty=skip left lines out: leave the same out here, or compare with the files of "
        "all references (references=[FILE,...])"
    )


def columns_of(
    given: Sequence[Sequence[str]], files: Sequence[str], skipped: Corpus | None = None
) -> list[list[str]]:
    """Return the lines of all files, behind columns that are given: all must have as many lines.

    They are read side by side, so that one that is far too long takes no memory. The first is of
    references. `skipped` is the corpus, where it may lack lines that files have.
    """
    try:
        rows = list(parallel_lines([*given, *map(iterate_lines, files)]))
    except UnequalLinesError as error:
        first, *_ = error.counts
        for path, count in zip(files, error.counts[len(given) :], strict=True):
            if count != first:
                raise InputError(
                    f"has {count} lines, and there are references of {first} sentences; every file "
                    f"needs one line a sentence{of_skipped(skipped, count)}",
                    path=path,
                ) from None
    return [[row[i] for row in rows] for i in range(len(given) + len(files))]


def _by_id(files: Sequence[str], references: int) -> list[list[str]] | None:
    """Return the texts of all files behind ids, as in Kaldi's ``text``, in one order.

    None: lines do not begin with ids. Those of all files must, each once, of letters and a digit,
    or of digits alone where all files have the same ones; where those of some files alone do, this
    is told. A system has an empty text where it has none for a sentence, which is told: scorers of
    speech count its words as deletions, too.

    references: so many files are of references, the first ones.
    """
    texts: list[dict[str, str]] = []
    for path in files:
        found: dict[str, str] = {}
        for line in iterate_lines(path) if Path(path).is_file() else [""]:
            id, _, text = line.partition(" ")
            if id in found or not (id.isdecimal() or SENTENCE_ID.fullmatch(id)):
                found = {}
                break
            found[id] = text
        texts.append(found)
    letters = [all(map(SENTENCE_ID.fullmatch, some)) for some in texts]
    same = all(texts[0].keys() & some.keys() for some in texts)
    if not all(letters):
        # Numbers may be words.
        same = all(texts[0].keys() == some.keys() for some in texts)
    if len(texts[0]) < 2 or not same:
        rows = zip(files, texts, letters, strict=True)
        named = [path for path, some, sure in rows if sure and len(some) >= CERTAIN]
        warn(
            f"{path}: lines begin with ids of sentences, which count as words: not all files have "
            "the same ones, each once"
            for path in named[:1]
        )
        return None
    told = [f"{files[0]}: lines begin with the ids of their sentences, and are compared by them"]
    for number, (path, some) in enumerate(zip(files, texts, strict=True)):
        for place, id in enumerate(some, 1):
            if id not in texts[0]:
                raise InputError(f"{id!r} is not in {files[0]}", path=path, line=place)
        lacking = [id for id in texts[0] if id not in some]
        if lacking and number < references:
            raise InputError(f"has no line for {lacking[0]!r}, which {files[0]} has", path=path)
        if lacking:
            told.append(
                f"{path}: has no line for {len(lacking):,} of {len(texts[0]):,} sentences, "
                f"{lacking[0]} among them, which count as empty ones"
            )
    warn(told)
    return [[some.get(id, "") for id in texts[0]] for some in texts]


# So many lines that begin each with another id do so by no chance.
CERTAIN: Final = 10
SENTENCE_ID: Final = re.compile(r"(?=[^ \t]*[0-9])(?=[^ \t]*[A-Za-z_-])[^ \t]+")
"""What a sentence may be called, and words hardly are."""

# What of a run's data the text of a set depends on, apart from the set's own files.
_TEXT: Final = "source_language target_language folders normalize tokenize lowercase empty".split()
# What the text of a source that is decoded depends on.
_LANGUAGES: Final = ["source_language", "target_language"]
_SOURCE: Final = [*_LANGUAGES, "normalize", "tokenize", "lowercase", "split_compounds"]


@dataclass(frozen=True)
class Compared:
    """The set on which systems are compared.

    open_run: returns the decoder of a run, given by its weights, these, and a set, given by its
        name and text, as it is to decode it; takes more templates for features besides.
    longest_source: returns how many words a source may have that such a run decodes; None: any.
    data: the options of the group ``data``, where they are given.
    typed: which of these are given one by one.
    references: files, where they are given; `takes_references` says whether they can be.
    """

    split: str
    open_run: Callable[..., tuple[Decoder, FrozenWeights, list[Source]]]
    longest_source: Callable[[Path], int | None]
    data: dict[str, Any] | None = None
    references: Sequence[str] | None = None
    takes_references: bool = True
    typed: Collection[str] = ()

    def find_data(self, outputs: Sequence[Output]) -> dict[str, Any] | None:
        """Return the data that are given, or else those of the runs; None: there are none."""
        if self.data is not None:
            here = self.data
            # What is typed is meant to be another; of files languages are always typed.
            looked_at = [n for n in _SOURCE if n in _LANGUAGES or n not in self.typed]
            for output in (one for one in outputs if self._is_untranslated(one, here)):
                own = output.data or here
                for name in (n for n in looked_at if own.get(n) != here.get(n)):
                    raise InputError(
                        f"was tuned on text with {name}={own.get(name)}, and {self.split} would be "
                        f"prepared with {here.get(name)} to be decoded; give data.{name}",
                        path=output.folder,
                    )
            return here
        found: dict[str, Any] | None = None
        first: Path | None = None
        for output in outputs:
            data = output.data
            if found is None:
                found, first = data, output.folder
            elif data is not None and self._of_set(data) != self._of_set(found):
                if self.references is not None:
                    return None
                cure = ", or references=[FILE,...]" if self.takes_references else ""
                raise InputError(
                    f"was tuned with other data than {first}, or text that is prepared in another "
                    f"way; say what is to be compared: data=NAME{cure}",
                    path=output.folder,
                )
        return found

    def _of_set(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {name: data.get(name) for name in (*_TEXT, self.split)}

    def read(
        self, data: Mapping[str, Any] | None, runs: Iterable[Path], chosen: int | None = None
    ) -> Corpus:
        """Read the set, which is to be decoded by runs, given by their weights.

        chosen: the one sentence that is decoded; None: all are.
        """
        if data is None:
            raise InputError(f"nobody says what {self.split} is; give data=NAME")
        with named_errors("data", data):
            dataset = Dataset(**data)
        corpus, split = dataset.read(self.split), self.split
        if corpus is None:
            raise InputError(
                f"there is no set {split} in the data (data.{split} is null); choose another one, "
                "as with split=dev"
            )
        if chosen is not None and chosen >= len(corpus):
            raise InputError(
                f"sentence={chosen + 1}: {split} has {len(corpus):,} sentences; give one of 1 to "
                f"{len(corpus)}"
            )
        for weights in runs:
            most = self.longest_source(weights)
            for i in range(len(corpus)) if chosen is None else [chosen]:
                if most is not None:
                    source = dataset.source_file(split)
                    check_length(corpus.source[i], most, source, corpus.lines[i])
        return corpus

    def outputs(self, every: Sequence[Output], *, with_source: bool) -> Outputs:
        """Return the translations of all outputs; weights translate the set of the data first.

        References are those of the files that are given, of the data that are given, or else of
        the data that the runs have in common.

        with_source: whether the corpus is wanted even where at most its references are needed.
        """
        split = self.split
        self.check_words(output.path for output in every if output.kind == "run")
        data = self.find_data(every)
        untranslated = [output for output in every if self._is_untranslated(output, data)]
        corpus: Corpus | None = None
        if data is not None and (self.references is None or untranslated or with_source):
            corpus = self.read(data, [output.own_weights(split) for output in untranslated])
        lists: dict[Output, list[list[str]]] = {}
        made: dict[Output, list[str]] = {}
        files: dict[Output, Path] = {}
        for output in every:
            if output.kind == "lists":
                stored = read_lists(output.path, "bars", dense=[]).lists
                lists[output] = [kbest.texts() for kbest in stored]
                made[output] = [entries[0] for entries in lists[output]]
            elif output not in untranslated:
                files[output] = output.translations(split)
            elif corpus is not None:
                # Most comparisons translate nothing.
                from torchtune_smt.tuners.sentences import translate

                weights = output.own_weights(split)
                made[output] = translate(*self.open_run(split, weights, corpus))
            elif self.references is not None:
                raise InputError(
                    f"{split} is still to be translated with these weights, and nobody says "
                    "what it is; give data=NAME",
                    path=output.path,
                )
        rows: list[list[str]]
        skipped = None
        if self.references is not None:
            # Of files that are given: those of all lines.
            count = len(self.references)
            named = [*self.references, *map(str, files.values())]
            columns = (None if made else _by_id(named, count)) or columns_of([], named)
            rows = [list(row) for row in zip(*columns[:count], strict=True)]
            for path, lines in zip(self.references, columns, strict=False):
                check_text(path, lines)
            columns = columns[count:]
        elif corpus is not None:
            skipped = corpus
            rows = [[" ".join(words) for words in row] for row in corpus.references]
            first = [row[0] for row in rows]
            columns = columns_of([first], [*map(str, files.values())], corpus)[1:]
        else:
            raise InputError(
                "there is nothing to compare with: give references=[FILE,...], or data=NAME, whose "
                f"references of {split} are taken"
            )
        read = dict(zip(files, columns, strict=True))
        for output, lines in read.items():
            if output.kind == "translations":
                check_text(output.path, lines)
        for output, lines in made.items():
            if len(lines) != len(rows):
                raise InputError(
                    f"has translations of {len(lines)} sentences, and there are references of "
                    f"{len(rows)}{of_skipped(skipped, len(lines))}",
                    path=output.path,
                )
        if corpus is not None and len(corpus.source) != len(rows):
            # The references that were given are of something else.
            corpus = None
        return Outputs({o: (read | made)[o] for o in every}, rows, corpus, lists)

    def check_words(self, runs: Iterable[Path]) -> None:
        """Raise InputError if a run has no translations of the set, as its lists have no words."""
        for folder in runs:
            if lacks_words(folder, self.split):
                raise InputError(
                    f"has no translations of {self.split}: features.dat has no words; BLEU by "
                    f"scores.dat is bleu/{self.split}_tuned in metrics.jsonl, and analyse progress "
                    "compares such runs",
                    path=folder,
                )

    def _is_untranslated(self, output: Output, data: Mapping[str, Any] | None) -> bool:
        """Return whether the output's weights must translate the set: no run has done it."""
        if output.folder is None:
            return False
        own = output.data
        other = data is not None and own is not None and self._of_set(own) != self._of_set(data)
        return output.kind == "weights" or other or not output.translations(self.split).is_file()
