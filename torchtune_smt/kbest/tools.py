"""The lists that tools write, but for those with fields between ``|||``: read, and written anew."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import BLANKS, finite_number, split_fields, whole_number
from torchtune_smt.core.textio import BadLine, blocks_of_lines, iterate_lines, read_lines
from torchtune_smt.kbest.lists import KBest, KBestLists

AnyPath = str | os.PathLike[str]
Sizes = int | AnyPath | None

SCORE: Final = "score"
"""What the score of a list is called where it is a feature."""

_NTH: Final = re.compile(r"([0-9]+)best_recog")
_FAIRSEQ: Final = re.compile(r"([STHDPAIE])-([0-9]{1,9})\t")
# What a line of JSON begins with, be it whole or not.
_ID: Final = re.compile(r'"id": *(?:"([^"\\]*)"|([0-9]{1,9})\b)')
# Which file of a folder of Kaldi's has the hypotheses, and which features others have.
_KALDI_TEXT: Final = ("words_text", "text", "words")
_KALDI_COST: Final = re.compile(r"(?:(ac|am)|lm|graph)(?:_cost|wt|_score)?(?:\.[a-z0-9]+)*")
_NO_FINITE: Final = ("inf", "infinity", "nan")
FLOOR: Final = "for the logarithm of 0 write a floor, such as -100"


class Entry(NamedTuple):
    """A hypothesis as a file has it.

    id: of its sentence; a number, from 0, where the tool counts.
    text: None: the sentence is there, and this is no hypothesis.
    path, line: where it stands.
    error: what is wrong with it.
    references, source: of the sentence.
    whole: whether all of the sentence is wrong, and counts as one hypothesis.
    """

    id: str | int
    text: str | None
    features: Mapping[str, float]
    score: float | None
    path: Path
    line: int | None
    error: str = ""
    references: Sequence[str] = ()
    whole: bool = False
    source: str | None = None


def _no_entry(id: str | int, path: Path, line: int | None, error: str = "", **more: Any) -> Entry:
    """Return what says that a sentence is there, or that something is wrong."""
    return Entry(id, None, {}, None, path, line, error, **more)


def is_number(text: str) -> bool:
    """Say whether a text is a number, be it infinite or none: readers say what is wrong with it."""
    text = text.strip(" ")
    return finite_number(text) is not None or text.lstrip("+-").lower() in _NO_FINITE


def _number_in(text: str) -> float:
    """Return a number, which a tensor may hold; raise ValueError where it is none, or infinite."""
    inside = text
    if text.startswith("tensor(") and text.endswith(")"):
        # Behind a comma stands a device, or a type.
        inside = text[7:-1].partition(",")[0]
    found = finite_number(inside.strip(BLANKS))
    if found is None:
        raise ValueError(f"{text!r} is no finite number; {FLOOR}")
    return found


def _json_value(value: Any) -> float:
    """Return a number of a JSON file, be it written as a text or not."""
    if isinstance(value, str):
        return _number_in(value)
    try:
        # An int may be too large for a float.
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{str(value)[:100]} is no finite number; {FLOOR}")
    return number


def _numbered(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each line, its text, and what is wrong with it where it is no text."""
    for number, line in enumerate(chain.from_iterable(blocks_of_lines(path)), 1):
        if isinstance(line, BadLine):
            yield number, line.content.decode("utf-8", "replace"), line.error.message
        else:
            yield number, line, ""


# Forms with the hypotheses of a sentence in one record


class _Record(NamedTuple):
    """A sentence of a file; `value`, as the file has it, is empty where there is an error."""

    id: str | int
    value: dict[str, Any]
    hypotheses: Sequence[Any]
    line: int | None
    error: str = ""
    references: Sequence[str] = ()
    source: Any = None


def _json_line(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"is no whole JSON value ({error}); is the file cut off? write one value a line"
        ) from None


def _json_dict(text: str, error: str) -> tuple[dict[str, Any], str]:
    """Return the record of a line, which is empty where there is none, and what is wrong."""
    try:
        record = {} if error else _json_line(text)
    except ValueError as wrong:
        record, error = {}, str(wrong)
    return record if isinstance(record, dict) else {}, error


def _are_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _json_records(path: Path) -> Iterator[_Record]:
    """Yield the records of JSON lines; without an id, the number of the record is one."""
    number = 0
    for line, text, error in _numbered(path):
        if not text.strip(" \t"):
            continue
        record, error = _json_dict(text, error)
        references, hypotheses = record.get("references", []), record.get("hypotheses")
        if not isinstance(hypotheses, list):
            shape = '{"id": ..., "hypotheses": [{"text": ..., "features": {...}}]}'
            error = error or f"is no record {shape}"
        elif not _are_strings(references):
            error = "`references` must be a list of strings"
        match = _ID.search(text)
        if match and not record:
            # Of a line that breaks off.
            record = {"id": int(match[2]) if match[2] else match[1]}
        id = record.get("id", number)
        id = id if type(id) is int and 0 <= id < 2**31 else str(id)
        value, found = ({}, ()) if error else (record, hypotheses or ())
        yield _Record(id, value, found, line, error, references, record.get("source"))
        number += 1


def _json_hypothesis(hypothesis: Any) -> tuple[str, dict[str, float], float | None]:
    given = hypothesis.get("features", {}) if isinstance(hypothesis, dict) else None
    if not isinstance(given, dict) or not isinstance(hypothesis.get("text"), str):
        raise ValueError('a hypothesis is no {"text": ..., "features": {name: number, ...}}')
    score = hypothesis.get("score")
    features = {name: _json_value(value) for name, value in given.items()}
    return hypothesis["text"], features, None if score is None else _json_value(score)


def _sockeye_records(path: Path) -> Iterator[_Record]:
    """Yield the records of Sockeye's JSON lines, which count from 1, with ids from 0."""
    for line, text, error in _numbered(path):
        record, error = _json_dict(text, error)
        number = record.get("sentence_id")
        texts = record.get("translations", [record.get("translation", "")])
        costs = record.get("scores", [record.get("score")])
        fine = _are_strings(texts) and isinstance(costs, list) and len(texts) == len(costs)
        if not error and (type(number) is not int or number < 1):
            error = f"sentence_id is {number!r}, and Sockeye counts from 1"
        elif not error and not fine:
            error = "translations must be a list of strings, and scores one of as many costs"
        id = (number if type(number) is int and 0 < number < 2**31 else line) - 1
        found = [] if error else [*zip(texts, costs, strict=True)]
        yield _Record(id, {} if error else record, found, line, error)


def _sockeye_hypothesis(pair: tuple[str, Any]) -> tuple[str, dict[str, float], float | None]:
    """Several costs are features, too, and the first is the score."""
    text, cost = pair
    values = [-_json_value(c) for c in (cost if isinstance(cost, list) and cost else [cost])]
    names = [SCORE, *(f"factor{i}" for i in range(1, len(values)))]
    return text, dict(zip(names, values, strict=True)) if len(values) > 1 else {}, values[0]


def _hypo2trans_records(path: Path) -> Iterator[_Record]:
    """Yield the records of a JSON array of ``{"input": [texts], "output": reference}``."""
    text = "\n".join(read_lines(path))
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"is no whole JSON value ({getattr(error, 'msg', error)}); is the file cut off?"
        raise InputError(message, path=path, line=getattr(error, "lineno", 1)) from None
    if not isinstance(records, list):
        raise InputError("is no JSON array of records", path=path, line=1)
    for number, record in enumerate(records):
        texts = record.get("input") if isinstance(record, dict) else None
        if texts is None or not _are_strings(texts):
            wrong = f'item {number} is no {{"input": [texts], "output": reference}}'
            yield _Record(number, {}, (), None, wrong)
            continue
        reference = record.get("output")
        references = [reference] if isinstance(reference, str) else []
        yield _Record(number, record, texts, None, "", references)


_Made = Callable[[Any], tuple[str, Mapping[str, float], float | None]]
_Records = Callable[[Path], Iterator[_Record]]


def _reader(records: _Records, made: _Made) -> Callable[[Path, Sizes], Iterator[Entry]]:
    """Return what yields the entries of a file of records."""

    def read(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
        for id, _, hypotheses, line, error, references, source in records(path):
            if error:
                yield _no_entry(id, path, line, error, whole=True)
                continue
            source = source if isinstance(source, str) else None
            yield _no_entry(id, path, line, references=references, source=source)
            for hypothesis in hypotheses:
                try:
                    text, features, score = made(hypothesis)
                    # Half of a pair of surrogates is no text.
                    text.encode()
                    yield Entry(id, text, features, score, path, line)
                except ValueError as wrong:
                    yield _no_entry(id, path, line, str(wrong))

    return read


def _pairs(kbest: KBest) -> list[tuple[int, float]]:
    """Return the entries and scores of a list."""
    assert kbest.entry is not None and kbest.score is not None
    return list(zip(kbest.entry.tolist(), kbest.score.tolist(), strict=True))


def _reordered(
    records: _Records, path: Path, lists: KBestLists
) -> Iterator[tuple[_Record, list[tuple[Any, float]]]]:
    """Yield the records of a file, and hypotheses of each in their new order, with their scores."""
    order = {entry: pairs for pairs in map(_pairs, lists) for entry, _ in pairs}
    first = 1
    for record in records(path):
        # A record with a fault counts as one hypothesis.
        last = first + (1 if record.error else len(record.hypotheses))
        pairs = next((order[entry] for entry in range(first, last) if entry in order), [])
        yield record, [(record.hypotheses[entry - first], score) for entry, score in pairs]
        first = last


def _json_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    for record, new in _reordered(_json_records, path, lists):
        hypotheses = [{**hypothesis, "score": score} for hypothesis, score in new]
        value = {**(record.value or {"id": record.id}), "hypotheses": hypotheses}
        yield json.dumps(value, ensure_ascii=False) + "\n"


def _sockeye_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    for record, new in _reordered(_sockeye_records, path, lists):
        texts, costs = [text for (text, _), _ in new], [-score for _, score in new]
        value = record.value or {"sentence_id": int(record.id) + 1, "translations": []}
        if "translations" in value:
            value |= {"translations": texts, "scores": [[cost] for cost in costs]}
        if texts:
            value |= {"translation": texts[0], "score": costs[0]}
        yield json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n"


def _hypo2trans_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    new = _reordered(_hypo2trans_records, path, lists)
    records = [{**record.value, "input": [text for text, _ in some]} for record, some in new]
    yield json.dumps(records, ensure_ascii=False, indent=1) + "\n"


# Forms that are folders


def _espnet_folders(path: Path) -> list[Path]:
    """Return the folders ``{n}best_recog`` in a folder: by n, then by the number of the job."""
    places = [path, *path.glob("output.*"), *path.glob("logdir/output.*")]
    found = [folder for place in places for folder in place.glob("*best_recog")]
    return sorted(
        (folder for folder in found if _NTH.fullmatch(folder.name)),
        key=lambda folder: (
            int(folder.name.removesuffix("best_recog")),
            [int(n) for n in re.findall("[0-9]+", folder.parent.name)],
        ),
    )


Line = tuple[str, int]
"""A value of a file, and its line."""
_Row = tuple[str, list[Line | None], tuple[Path, int, str] | None]


def _keyed(
    lines: Iterable[tuple[int, str, str]],
) -> tuple[dict[str, Line], dict[str, tuple[int, str]]]:
    """Return lines ``key value`` by their keys, and keys with which something is wrong."""
    table: dict[str, Line] = {}
    wrong: dict[str, tuple[int, str]] = {}
    for line, text, error in lines:
        key, _, value = text.replace("\t", " ").partition(" ")
        if key in table:
            error = f"{key!r} is there twice, in line {table[key][1]}, too; remove one of them"
        if error:
            wrong.setdefault(key, (line, error))
        table.setdefault(key, (value, line))
    return table, wrong


def keyed_lines(path: Path, lines: Iterable[str] | None = None) -> dict[str, Line]:
    """Return the lines ``key value`` of a file by their keys; raise InputError for one twice.

    lines: of the file, where it was read already.
    """
    given = iterate_lines(path) if lines is None else lines
    table, wrong = _keyed((number, text, "") for number, text in enumerate(given, 1))
    for line, error in wrong.values():
        raise InputError(error, path=path, line=line)
    return table


def _side_by_side(files: Sequence[Path]) -> Iterator[_Row]:
    """Yield each key of files with lines ``key value``, its values, and where what is wrong."""
    tables: list[dict[str, Line]] = []
    wrong: dict[str, tuple[Path, int, str]] = {}
    for path in files:
        table, faults = _keyed(_numbered(path))
        tables.append(table)
        wrong = {key: (path, *fault) for key, fault in faults.items()} | wrong
    for key in dict.fromkeys(chain.from_iterable(tables)):
        found = [table.get(key) for table in tables]
        if None in found:
            at, (_, line) = next((p, f) for p, f in zip(files, found, strict=True) if f)
            problem = f"{key!r} is not in {files[found.index(None)]}; both need the same hypotheses"
            wrong.setdefault(key, (at, line, problem))
        yield key, found, wrong.get(key)


def _values(
    rows: Iterable[_Row], files: Mapping[str, Path], made: Callable[[str, str, str], Any]
) -> Iterator[tuple[str, dict[str, Any], Path, int, str]]:
    """Yield the key of each row, its values by the names of files, and where what is wrong."""
    for key, found, wrong in rows:
        values: dict[str, Any] = {}
        at, line, error = wrong or (next(iter(files.values())), 0, "")
        try:
            for name, value in () if error else zip(files, found, strict=True):
                assert value is not None
                at, line = files[name], value[1]
                values[name] = made(key, name, value[0])
        except ValueError as failed:
            error = str(failed)
        yield key, values, at, line, error


def _espnet_value(
    place: dict[tuple[str, str], Path], folder: Path, id: str, name: str, text: str
) -> Any:
    """Return a value of a file; `place` is the folder of each id that was read."""
    if name == "score":
        return _number_in(text)
    if name == "text":
        first = place.setdefault((folder.name, id), folder)
        if first is not folder:
            said = f"{id!r} is in {first / 'text'}, too; remove what is of another run"
            raise ValueError(said)
        return text
    numbers = _json_line(text)
    if not isinstance(numbers, dict):
        raise ValueError("scores must be names and numbers")
    return {intern(key): _json_value(value) for key, value in numbers.items()}


def _espnet_files(folder: Path) -> dict[str, Path]:
    names = ("text", "score", "scores")
    return {n: folder / n for n in names if n == "text" or (folder / n).exists()}


def _read_espnet(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of ESPnet's folders ``{n}best_recog``, with text, score and scores."""
    place: dict[tuple[str, str], Path] = {}
    for folder in _espnet_folders(path):
        files = _espnet_files(folder)
        made = partial(_espnet_value, place, folder)
        for id, found, at, line, error in _values(_side_by_side([*files.values()]), files, made):
            features, score = found.get("scores", {}), found.get("score")
            yield Entry(id, None if error else found["text"], features, score, at, line, error)


def _write_espnet(path: Path, lists: KBestLists) -> dict[str, list[str]]:
    """Return the lines of ESPnet's files ``{n}best_recog/text`` and ``score``, of one job."""
    rows = (_side_by_side([*_espnet_files(one).values()]) for one in _espnet_folders(path))
    old = [(id, of[0][0] if of[0] else "") for id, of, _ in chain.from_iterable(rows)]
    files: dict[str, list[str]] = {}
    for kbest in lists:
        for n, (entry, score) in enumerate(_pairs(kbest), 1):
            id, text = old[entry - 1]
            files.setdefault(f"{n}best_recog/text", []).append(f"{id} {text}\n")
            files.setdefault(f"{n}best_recog/score", []).append(f"{id} {score:.10g}\n")
    return files


def _kaldi_files(path: Path) -> dict[str, Path]:
    """Return the files of a folder of Kaldi's by feature, if it has all; hypotheses, "", first."""
    text = next((path / name for name in _KALDI_TEXT if (path / name).is_file()), None)
    if text is None:
        return {}
    files = {"": text}
    for file in sorted(path.iterdir()):
        match = _KALDI_COST.fullmatch(file.name.removesuffix(".gz"))
        if match:
            name = "acoustic" if match[1] else "graph" if match[0].startswith("graph") else "lm"
            files[name if name not in files else file.name] = file
    return files if len(files) > 1 else {}


def _kaldi_rows(files: Mapping[str, Path]) -> list[_Row]:
    """Return what is side by side under keys ``utterance-n``, by their n."""
    rows = _side_by_side([*files.values()])
    return sorted(rows, key=lambda row: whole_number(row[0].rpartition("-")[2]) or 0)


def _kaldi_value(key: str, name: str, text: str) -> Any:
    if name:
        return -_number_in(text)
    id, _, nth = key.rpartition("-")
    if not id or not whole_number(nth):
        raise ValueError(f"{key!r} is no utterance-n, with n from 1")
    return text


def _read_kaldi(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of Kaldi's n-best lists, ``utterance-n words`` and a cost a file."""
    files = _kaldi_files(path)
    if not files:
        raise InputError(
            f"has no hypotheses ({' or '.join(_KALDI_TEXT)}) with costs (lm_cost, ac_cost, ...)",
            path=path,
        )
    for key, found, at, line, error in _values(_kaldi_rows(files), files, _kaldi_value):
        text = found.pop("", None)
        id = key.rpartition("-")[0] or key
        yield Entry(id, None if error else text, found, None, at, line, error)


def _write_kaldi(path: Path, lists: KBestLists) -> dict[str, list[str]]:
    """Return the lines of Kaldi's files, with new numbers behind the utterances."""
    files = _kaldi_files(path)
    old = _kaldi_rows(files)
    rows = [
        (f"{old[entry - 1][0].rpartition('-')[0]}-{n}", old[entry - 1][1])
        for kbest in lists
        for n, (entry, _) in enumerate(_pairs(kbest), 1)
    ]
    return {
        file.name.removesuffix(".gz"): [
            f"{key} {value[0]}\n" for key, values in rows if (value := values[column])
        ]
        for column, file in enumerate(files.values())
    }


# Forms with a line, or some, for each hypothesis


def _read_fairseq(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of fairseq's generate: H and, where it follows, D for the text."""
    open_entry: Entry | None = None
    for line, text, fault in _numbered(path):
        match = _FAIRSEQ.match(text)
        if match is None or match[1] not in "HDS":
            if fault:
                raise InputError(fault, path=path, line=line)
            continue
        id, fields = int(match[2]), text.split("\t")
        if match[1] == "D" and open_entry is not None and open_entry.id == id:
            if fault:
                open_entry = open_entry._replace(text=None, line=line, error=fault)
            elif len(fields) == 3 and not open_entry.error:
                open_entry = open_entry._replace(text=fields[2])
            continue
        if open_entry is not None:
            yield open_entry
            open_entry = None
        if match[1] == "S":
            yield _no_entry(id, path, line)
            continue
        try:
            if fault or len(fields) != 3:
                raise ValueError(fault or "is no `H-number score tokens`, with tabs between")
            # They are in base 2.
            score = _number_in(fields[1]) * math.log(2)
            open_entry = Entry(id, fields[2], {}, score, path, line)
        except ValueError as error:
            open_entry = _no_entry(id, path, line, str(error))
    if open_entry is not None:
        yield open_entry


def _fairseq_lines(path: Path, lists: KBestLists) -> Iterator[str]:
    """Yield what is said of a source, and then of its hypotheses, in their new order."""
    heads: dict[int, list[str]] = {}
    blocks: list[list[str]] = []
    for text in iterate_lines(path):
        match = _FAIRSEQ.match(text)
        if match and match[1] in "STI":
            heads.setdefault(int(match[2]), []).append(text)
        elif match and match[1] == "H":
            blocks.append([text])
        elif match and blocks:
            blocks[-1].append(text)
    for kbest in lists:
        yield from (line + "\n" for line in heads.get(kbest.index, []))
        for entry, score in _pairs(kbest):
            for line in blocks[entry - 1]:
                fields = line.split("\t")
                if line[0] in "HD":
                    fields[1] = f"{score / math.log(2):.10g}"
                yield "\t".join(fields) + "\n"


def _sized(path: Path, sizes: Sizes) -> Iterator[list[tuple[int, str, str]]]:
    """Yield the lines of each sentence; raise InputError where it is not known which these are."""
    if sizes is None:
        raise InputError(
            "does not say which lines are of one sentence; say it with sizes=NUMBER of each, or "
            "with sizes=FILE, a number a line",
            path=path,
        )
    lines = list(_numbered(path))
    if isinstance(sizes, int):
        numbers = [sizes] * (len(lines) // max(sizes, 1))
    else:
        given = [whole_number(text.strip(" \t")) for text in iterate_lines(sizes)]
        if None in given:
            raise InputError("is no number", path=sizes, line=given.index(None) + 1)
        numbers = [number or 0 for number in given]
    if sum(numbers) != len(lines):
        raise InputError(
            f"has {len(lines)} lines, and sizes={sizes} makes {sum(numbers)}; name a file with the "
            "number of hypotheses of each sentence",
            path=path,
        )
    for number, end in zip(numbers, accumulate(numbers), strict=True):
        yield lines[end - number : end]


@dataclass(frozen=True)
class _Lines:
    """A form with a hypothesis a line, and without a word of which sentence it is of.

    shape: what lines are like, for people.
    pattern: has the groups `text` and, if lines have one, `score`.
    zeros: what is said of a file whose scores are all 0, if that is a fault.
    """

    shape: str
    pattern: re.Pattern[str]
    zeros: str = ""

    def read(self, path: Path, sizes: Sizes = None) -> Iterator[Entry]:
        """Yield the entries; raise InputError where scores are missing."""
        scores = set()
        for id, lines in enumerate(_sized(path, sizes)):
            yield _no_entry(id, path, None)
            for line, whole, fault in lines:
                try:
                    match = self.pattern.fullmatch(whole)
                    if fault or match is None:
                        raise ValueError(fault or f"is no {self.shape}")
                    found = match.groupdict()
                    score = _number_in(found["score"]) if "score" in found else None
                    scores.add(score)
                    yield Entry(id, found["text"] or "", {}, score, path, line)
                except ValueError as error:
                    yield _no_entry(id, path, line, str(error))
        if self.zeros and scores <= {0.0}:
            raise InputError(self.zeros, path=path)

    def write(self, path: Path, lists: KBestLists) -> Iterator[str]:
        """Yield the lines in their new order, with new scores."""
        old = read_lines(path)
        for entry, score in chain.from_iterable(map(_pairs, lists)):
            line = old[entry - 1]
            match = self.pattern.fullmatch(line)
            if match and "score" in match.groupdict():
                line = f"{line[: match.start('score')]}{score:.10g}{line[match.end('score') :]}"
            yield line + "\n"


_CTRANSLATE2: Final = _Lines(
    "`score ||| text`",
    re.compile(r"(?P<score>.*?) \|\|\|(?: (?P<text>.*))?"),
    "has no scores but 0; let CTranslate2 write them (with_scores)",
)
_NEMO: Final = _Lines("`text<TAB>score`", re.compile(r"(?P<text>.*)\t(?P<score>.*)"))
_PLAIN: Final = _Lines("line", re.compile("(?P<text>.*)"))


# The table of forms


class Form(NamedTuple):
    """A form of lists.

    looks: says whether a path has it, by its first lines that are not blank (none of a folder).
    read: yields the entries of a path; see `Sizes`.
    write: yields lists with scores, and entries as they were read, anew, line by line.
    write_folder: does so for a form that is a folder: the lines of each file.
    """

    looks: Callable[[Path, Sequence[str]], bool]
    read: Callable[[Path, Sizes], Iterator[Entry]]
    write: Callable[[Path, KBestLists], Iterator[str]] | None = None
    write_folder: Callable[[Path, KBestLists], dict[str, list[str]]] | None = None


def _is_folder(found: Callable[[Path], object]) -> Callable[[Path, Sequence[str]], bool]:
    return lambda path, _: path.is_dir() and bool(found(path))


def _begins(with_: str, part: str = "") -> Callable[[Path, Sequence[str]], bool]:
    return lambda _, lines: bool(lines) and lines[0].startswith(with_) and part in lines[0]


def _most(good: Callable[[str], bool]) -> Callable[[Path, Sequence[str]], bool]:
    # One line among others may have a fault.
    return lambda _, lines: bool(lines) and 2 * sum(map(good, lines)) >= len(lines)


def _is_ctranslate2(line: str) -> bool:
    fields = split_fields(line)
    return len(fields) == 2 and is_number(fields[0])


def _is_nemo(line: str) -> bool:
    _, tab, end = line.rpartition("\t")
    return bool(tab) and is_number(end) and len(split_fields(line)) < 3


FORMS: Final[Mapping[str, Form]] = {
    "espnet": Form(_is_folder(_espnet_folders), _read_espnet, write_folder=_write_espnet),
    "kaldi": Form(_is_folder(_kaldi_files), _read_kaldi, write_folder=_write_kaldi),
    "sockeye": Form(
        _begins("{", '"sentence_id"'),
        _reader(_sockeye_records, _sockeye_hypothesis),
        _sockeye_lines,
    ),
    "json": Form(_begins("{"), _reader(_json_records, _json_hypothesis), _json_lines),
    "hypo2trans": Form(
        _begins("["), _reader(_hypo2trans_records, lambda text: (text, {}, None)), _hypo2trans_lines
    ),
    "fairseq": Form(
        lambda _, lines: any(map(_FAIRSEQ.match, lines)), _read_fairseq, _fairseq_lines
    ),
    "ctranslate2": Form(_most(_is_ctranslate2), _CTRANSLATE2.read, _CTRANSLATE2.write),
    "nemo": Form(_most(_is_nemo), _NEMO.read, _NEMO.write),
    "lines": Form(lambda *_: False, _PLAIN.read, _PLAIN.write),
}
"""The forms that are read hypothesis by hypothesis, in the order in which they are looked for."""
