"""Readers of the lists that tools write, but for those with fields between ``|||``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import BLANKS, finite_number, whole_number
from torchtune_smt.core.textio import BadLine, blocks_of_lines, iterate_lines, read_lines

AnyPath = str | os.PathLike[str]
Sizes = int | AnyPath | None

SCORE: Final = "score"
"""What the score of a list is called where it is a feature."""

_NTH: Final = re.compile(r"([0-9]+)best_recog")
FAIRSEQ: Final = re.compile(r"([STHDPAIE])-([0-9]{1,9})\t")
# Which file of a folder of Kaldi's has the hypotheses, and which features others have.
# What a line of JSON begins with, be it whole or not.
_ID: Final = re.compile(r'"id": *(?:"([^"\\]*)"|([0-9]{1,9})\b)')
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
    references: of the sentence.
    whole: whether all of the sentence is wrong, and counts as one hypothesis.
    source: of the sentence.
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


def is_number(text: str) -> bool:
    """Say whether a text is a number, be it infinite or none: readers say what is wrong with it."""
    text = text.strip(" ")
    return finite_number(text) is not None or text.lstrip("+-").lower() in _NO_FINITE


def number_in(text: str) -> float:
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
        return number_in(value)
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


def _json_line(text: str) -> Any:
    """Return the value of a line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"is no whole JSON value ({error}); is the file cut off? write one value a line"
        ) from None


class Record(NamedTuple):
    """A line of JSON: `value` is empty where there is an error."""

    id: str | int
    value: dict[str, Any]
    line: int | None
    error: str = ""


def json_records(path: Path) -> Iterator[Record]:
    """Yield the records of JSON lines; without an id, the number of the record is one."""
    number = 0
    for line, text, error in _numbered(path):
        if not text.strip(" \t"):
            continue
        found: Any = None
        try:
            found = None if error else _json_line(text)
        except ValueError as wrong:
            error = str(wrong)
        record = found if isinstance(found, dict) else {}
        references = record.get("references", [])
        if not isinstance(record.get("hypotheses"), list):
            shape = '{"id": ..., "hypotheses": [{"text": ..., "features": {...}}]}'
            error = error or f"is no record {shape}"
        elif not isinstance(references, list) or not all(isinstance(r, str) for r in references):
            error = "`references` must be a list of strings"
        match = _ID.search(text)
        if match and not record:
            # Of a line that breaks off.
            record = {"id": int(match[2]) if match[2] else match[1]}
        id = record.get("id", number)
        id = id if type(id) is int and 0 <= id < 2**31 else str(id)
        yield Record(id, {} if error else record, line, error)
        number += 1


def _faulty(record: Record, path: Path) -> Entry:
    return Entry(record.id, None, {}, None, path, record.line, record.error, whole=True)


def read_json(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of JSON lines; without an id, the number of the record is one."""
    for record in json_records(path):
        id, value, line, error = record
        if error:
            yield _faulty(record, path)
            continue
        references = value.get("references", [])
        source = value.get("source")
        source = source if isinstance(source, str) else None
        yield Entry(id, None, {}, None, path, line, references=references, source=source)
        for hypothesis in value["hypotheses"]:
            yield _json_entry(id, hypothesis, path, line or 0)


def _json_entry(id: str | int, hypothesis: Any, path: Path, line: int) -> Entry:
    """Return a hypothesis of JSON lines."""
    try:
        if not isinstance(hypothesis, dict) or not isinstance(hypothesis.get("text"), str):
            raise ValueError(f'a hypothesis of {id!r} is no {{"text": ..., "features": ...}}')
        given = hypothesis.get("features", {})
        if not isinstance(given, dict):
            raise ValueError(f"features of {id!r} must be names and numbers")
        features = {name: _json_value(value) for name, value in given.items()}
        score = hypothesis.get("score")
        score = None if score is None else _json_value(score)
        # Half of a pair of surrogates is no text.
        hypothesis["text"].encode()
        return Entry(id, hypothesis["text"], features, score, path, line)
    except ValueError as error:
        return Entry(id, None, {}, None, path, line, str(error))


def espnet_folders(path: Path) -> list[Path]:
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


def keyed_lines(path: Path, lines: Iterable[str] | None = None) -> dict[str, tuple[str, int]]:
    """Return the lines ``key value`` of a file: by their key, the value and the line.

    Raises InputError: a key is there twice.

    lines: of the file, where it was read already.
    """
    found: dict[str, tuple[str, int]] = {}
    for line, text in enumerate(iterate_lines(path) if lines is None else lines, 1):
        key, _, value = text.partition(" ")
        if key in found:
            raise InputError(
                f"{key!r} is there twice, in line {found[key][1]}, too; remove one of them",
                path=path,
                line=line,
            )
        found[key] = value, line
    return found


Line = tuple[str, int]
"""A value of a file, and its line."""


def side_by_side(
    files: Sequence[Path],
) -> Iterator[tuple[str, list[Line | None], tuple[Path, int, str] | None]]:
    """Yield each key of files with lines ``key value``, its value in each, and what is wrong.

    That is the file, the line, and what is said of it.
    """
    tables: list[dict[str, Line]] = []
    wrong: dict[str, tuple[Path, int, str]] = {}
    for path in files:
        table: dict[str, Line] = {}
        for line, text, error in _numbered(path):
            key, _, value = text.partition(" ")
            if key in table:
                error = f"{key!r} is there twice, in line {table[key][1]}, too; remove one of them"
            if error:
                wrong.setdefault(key, (path, line, error))
            table.setdefault(key, (value, line))
        tables.append(table)
    for key in dict.fromkeys(chain.from_iterable(tables)):
        found = [table.get(key) for table in tables]
        if None in found:
            at, (_, line) = next((p, f) for p, f in zip(files, found, strict=True) if f)
            problem = f"{key!r} is not in {files[found.index(None)]}; both need the same hypotheses"
            wrong.setdefault(key, (at, line, problem))
        yield key, found, wrong.get(key)


def read_espnet(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of ESPnet's folders ``{n}best_recog``, with text, score and scores."""
    place: dict[tuple[str, str], Path] = {}
    for folder in espnet_folders(path):
        nth = folder.name
        files = {n: folder / n for n in ("text", "score", "scores")}
        files = {n: file for n, file in files.items() if n == "text" or file.exists()}
        for id, found, wrong in side_by_side([*files.values()]):
            at, line, error = wrong or (files["text"], 0, "")
            text, score, features = None, None, {}
            try:
                for name, value in () if error else zip(files, found, strict=True):
                    assert value is not None
                    at, line = files[name], value[1]
                    if name == "text":
                        text = value[0]
                        if (first := place.setdefault((nth, id), folder)) is not folder:
                            said = f"{id!r} is in {first / 'text'}, too; remove what is of another"
                            raise ValueError(f"{said} run")
                    elif name == "score":
                        score = number_in(value[0])
                    else:
                        numbers = _json_line(value[0])
                        if not isinstance(numbers, dict):
                            raise ValueError("scores must be names and numbers")
                        features = {intern(key): _json_value(v) for key, v in numbers.items()}
            except ValueError as failed:
                error = str(failed)
            yield Entry(id, None if error else text, features, score, at, line, error)


def kaldi_files(path: Path) -> tuple[Path, dict[str, Path]] | None:
    """Return the file of hypotheses of a folder of Kaldi's, and those of its costs by feature."""
    text = next((path / name for name in _KALDI_TEXT if (path / name).is_file()), None)
    costs: dict[str, Path] = {}
    for file in sorted(path.iterdir()) if text else []:
        match = _KALDI_COST.fullmatch(file.name.removesuffix(".gz"))
        if match:
            name = "acoustic" if match[1] else "graph" if match[0].startswith("graph") else "lm"
            costs[name if name not in costs else file.name] = file
    return (text, costs) if text and costs else None


def kaldi_lines(
    files: Sequence[Path],
) -> list[tuple[str, list[Line | None], tuple[Path, int, str] | None]]:
    """Return what is `side_by_side` in files with keys ``utterance-n``, by their n."""
    return sorted(
        side_by_side(files), key=lambda row: int(whole_number(row[0].rpartition("-")[2]) or 0)
    )


def read_kaldi(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of Kaldi's n-best lists, ``utterance-n words`` and a cost a file."""
    found = kaldi_files(path)
    if found is None:
        raise InputError(
            f"has no hypotheses ({' or '.join(_KALDI_TEXT)}) with costs (lm_cost, ac_cost, ...)",
            path=path,
        )
    text_file, costs = found
    for key, values, wrong in kaldi_lines([text_file, *costs.values()]):
        id, _, nth = key.rpartition("-")
        at, line, error = wrong or (text_file, 0, "")
        text, features = None, {}
        try:
            for name, value in () if error else zip(("", *costs), values, strict=True):
                assert value is not None
                at, line = costs.get(name, text_file), value[1]
                if not name:
                    text = value[0]
                    if not id or not whole_number(nth):
                        raise ValueError(f"{key!r} is no utterance-n, with n from 1")
                else:
                    features[name] = -number_in(value[0])
        except ValueError as failed:
            error = str(failed)
        yield Entry(id or key, None if error else text, features, None, at, line, error)


def read_fairseq(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of fairseq's generate: H and, where it follows, D for the text.

    Scores are in base 2, and become natural logarithms.
    """
    open_entry: Entry | None = None
    for line, text, fault in _numbered(path):
        match = FAIRSEQ.match(text)
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
            yield Entry(id, None, {}, None, path, line)
            continue
        try:
            if fault:
                raise ValueError(fault)
            if len(fields) != 3:
                raise ValueError("is no `H-number score tokens`, with tabs between")
            score = number_in(fields[1]) * math.log(2)
            open_entry = Entry(id, fields[2], {}, score, path, line)
        except ValueError as error:
            open_entry = Entry(id, None, {}, None, path, line, str(error))
    if open_entry is not None:
        yield open_entry


def sockeye_records(path: Path) -> Iterator[Record]:
    """Yield the records of Sockeye's JSON lines, which count from 1, with ids from 0."""
    for line, text, error in _numbered(path):
        record: Any = None
        try:
            record = None if error else _json_line(text)
        except ValueError as wrong:
            error = str(wrong)
        record = record if isinstance(record, dict) else {}
        number = record.get("sentence_id")
        texts, costs = sockeye_lists(record)
        if not error and (type(number) is not int or number < 1):
            error = f"sentence_id is {number!r}, and Sockeye counts from 1"
        elif not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            error = "translations must be a list of strings"
        elif not isinstance(costs, list):
            error = "scores must be a list"
        elif len(texts) != len(costs):
            error = f"has {len(texts)} translations and {len(costs)} scores; it needs as many"
        id = number if type(number) is int and 0 < number < 2**31 else line
        yield Record(id - 1, {} if error else record, line, error)


def sockeye_lists(record: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the translations and the costs of a record."""
    return (
        record.get("translations", [record.get("translation", "")]),
        record.get("scores", [record.get("score")]),
    )


def read_sockeye(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of Sockeye's JSON lines, which count from 1 and have costs."""
    for record in sockeye_records(path):
        id, value, line, error = record
        if error:
            yield _faulty(record, path)
            continue
        yield Entry(id, None, {}, None, path, line)
        for translation, cost in zip(*sockeye_lists(value), strict=True):
            try:
                values = [-_json_value(c) for c in (cost if isinstance(cost, list) else [cost])]
                names = [SCORE, *(f"factor{i}" for i in range(1, len(values)))]
                features = dict(zip(names, values, strict=True)) if len(values) > 1 else {}
                yield Entry(id, translation, features, values[0], path, line)
            except ValueError as wrong:
                yield Entry(id, None, {}, None, path, line, str(wrong))


def hypo2trans_records(path: Path) -> list[Record]:
    """Return the records of a JSON array of ``{"input": [texts], "output": reference}``."""
    text = "\n".join(read_lines(path))
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is no whole JSON value ({getattr(error, 'msg', error)}); is the file cut off?",
            path=path,
            line=getattr(error, "lineno", 1),
        ) from None
    if not isinstance(records, list):
        raise InputError("is no JSON array of records", path=path, line=1)
    found = []
    for number, record in enumerate(records):
        texts = record.get("input") if isinstance(record, dict) else None
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            found.append(Record(number, record, None))
        else:
            wrong = f'item {number} is no {{"input": [texts], "output": reference}}'
            found.append(Record(number, {}, None, wrong))
    return found


def read_hypo2trans(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of a JSON array of ``{"input": [texts], "output": reference}``."""
    for record in hypo2trans_records(path):
        if record.error:
            yield _faulty(record, path)
            continue
        reference = record.value.get("output")
        references = [reference] if isinstance(reference, str) else []
        yield Entry(record.id, None, {}, None, path, None, references=references)
        for text in record.value["input"]:
            yield Entry(record.id, text, {}, None, path, None)


def _sized(
    path: Path, sizes: Sizes, split: Callable[[str], tuple[str, str | None]]
) -> Iterator[Entry]:
    """Yield the entries of lines that do not say whose they are.

    Raises InputError: it is not known how many hypotheses a sentence has, or there are other ones.

    split: returns the text and the score of a line; ValueError says what is wrong with it.
    """
    if sizes is None:
        raise InputError(
            "does not say which lines are of one sentence; say it with sizes=NUMBER of each, or "
            "with sizes=FILE, a number a line",
            path=path,
        )
    lines = list(_numbered(path))
    if isinstance(sizes, int):
        if sizes < 1 or len(lines) % sizes:
            raise InputError(
                f"has {len(lines)} lines, no multiple of sizes={sizes}; name a file with the "
                "number of hypotheses of each sentence",
                path=path,
            )
        numbers = [sizes] * (len(lines) // sizes)
    else:
        given = [whole_number(text.strip(" \t")) for text in iterate_lines(sizes)]
        if None in given:
            raise InputError("is no number", path=sizes, line=given.index(None) + 1)
        numbers = [number or 0 for number in given]
        if sum(numbers) != len(lines):
            raise InputError(
                f"has {len(lines)} lines, and the numbers in {sizes} make {sum(numbers)}", path=path
            )
    at = 0
    for id, number in enumerate(numbers):
        yield Entry(id, None, {}, None, path, at + 1)
        for line in range(at + 1, at + number + 1):
            try:
                _, whole, fault = lines[line - 1]
                if fault:
                    raise ValueError(fault)
                text, score = split(whole)
                value = None if score is None else number_in(score)
                yield Entry(id, text, {}, value, path, line)
            except ValueError as error:
                yield Entry(id, None, {}, None, path, line, str(error))
        at += number


def read_ctranslate2(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of CTranslate2, ``score ||| text``."""

    def split(line: str) -> tuple[str, str | None]:
        score, bar, text = line.partition(" ||| ")
        if not bar and not line.endswith(" |||"):
            raise ValueError("is no `score ||| text`")
        return text, score.removesuffix(" |||")

    scores = set()
    for entry in _sized(path, sizes, split):
        scores.add(entry.score)
        yield entry
    if scores <= {0.0, None}:
        raise InputError("has no scores but 0; let CTranslate2 write them (with_scores)", path=path)


def read_nemo(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of NeMo's beam search, ``text<TAB>score``."""

    def split(line: str) -> tuple[str, str | None]:
        text, tab, score = line.rpartition("\t")
        if not tab:
            raise ValueError("is no `text<TAB>score`")
        return text, score

    return _sized(path, sizes, split)


def read_plain_lines(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the lines of a file, so many a sentence; scores are in other files."""
    return _sized(path, sizes, lambda line: (line, None))
