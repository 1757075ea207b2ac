"""Readers of the lists that tools write, but for those with fields between ``|||``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import BLANKS, finite_number, whole_number
from torchtune_smt.core.textio import iterate_lines, read_lines

AnyPath = str | os.PathLike[str]
Sizes = int | AnyPath | None

SCORE: Final = "score"
"""What the score of a list is called where it is a feature."""

_NTH: Final = re.compile(r"([0-9]+)best_recog")
FAIRSEQ: Final = re.compile(r"([STHDPAIE])-([0-9]{1,9})\t")
# Which file of a folder of Kaldi's has the hypotheses, and which features others have.
_KALDI_TEXT: Final = ("words_text", "text", "words")
_KALDI_COST: Final = re.compile(r"(?:(ac|am)|lm|graph)(?:_cost|wt|_score)?(?:\.[a-z0-9]+)*")
_FLOOR: Final = "for the logarithm of 0 write a floor, such as -100"


class Entry(NamedTuple):
    """A hypothesis as a file has it.

    id: of its sentence; a number, from 0, where the tool counts.
    text: None: the sentence is there, and this is no hypothesis.
    path, line: where it stands.
    error: what is wrong with it.
    references: of the sentence.
    """

    id: str | int
    text: str | None
    features: Mapping[str, float]
    score: float | None
    path: Path
    line: int | None
    error: str = ""
    references: Sequence[str] = ()


def number_in(text: str) -> float:
    """Return a number, which a tensor may hold; raise ValueError where it is none, or infinite."""
    inside = text
    if text.startswith("tensor(") and text.endswith(")"):
        # Behind a comma stands a device, or a type.
        inside = text[7:-1].partition(",")[0]
    found = finite_number(inside.strip(BLANKS))
    if found is None:
        raise ValueError(f"{text!r} is no finite number; {_FLOOR}")
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
        raise ValueError(f"{str(value)[:100]} is no finite number; {_FLOOR}")
    return number


def _json_line(line: str, path: Path, number: int | None) -> Any:
    """Return the value of a line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is no whole JSON value ({error}); is the file cut off? write one value a line",
            path=path,
            line=number,
        ) from None


def read_json(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of JSON lines; without an id, the number of the record is one."""
    record_number = 0
    for line, text in enumerate(iterate_lines(path), 1):
        if not text.strip(" \t"):
            continue
        record = _json_line(text, path, line)
        hypotheses = record.get("hypotheses") if isinstance(record, dict) else None
        if not isinstance(hypotheses, list):
            raise InputError(
                'is no record {"id": ..., "hypotheses": [{"text": ..., "features": {...}}]}',
                path=path,
                line=line,
            )
        id = record.get("id", record_number)
        id = id if type(id) is int and 0 <= id < 2**31 else str(id)
        references = record.get("references", [])
        if not isinstance(references, list) or not all(isinstance(r, str) for r in references):
            raise InputError("`references` must be a list of strings", path=path, line=line)
        yield Entry(id, None, {}, None, path, line, references=references)
        for hypothesis in hypotheses:
            yield _json_entry(id, hypothesis, path, line)
        record_number += 1


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


def read_espnet(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of ESPnet's folders ``{n}best_recog``, with text, score and scores."""
    place: dict[tuple[str, str], Path] = {}
    for folder in espnet_folders(path):
        texts = keyed_lines(folder / "text")
        for id, (_, line) in texts.items():
            if (first := place.setdefault((folder.name, id), folder)) != folder:
                raise InputError(
                    f"{id!r} is in {first / 'text'}, too; remove what is of another run",
                    path=folder / "text",
                    line=line,
                )
        single = keyed_lines(folder / "score") if (folder / "score").exists() else None
        several = keyed_lines(folder / "scores") if (folder / "scores").exists() else None
        for other, name in ((single, "score"), (several, "scores")):
            if other is not None:
                _same_keys(texts, folder / "text", other, folder / name)
        text_at, score_at, scores_at = (folder / name for name in ("text", "score", "scores"))
        for id, (text, line) in texts.items():
            at, score, features = text_at, None, {}
            try:
                if single is not None:
                    at = score_at
                    value, line = single[id]
                    score = number_in(value)
                if several is not None:
                    at = scores_at
                    value, line = several[id]
                    numbers = _json_line(value, at, line)
                    if not isinstance(numbers, dict):
                        raise ValueError("scores must be names and numbers")
                    features = {name: _json_value(v) for name, v in numbers.items()}
                yield Entry(id, text, features, score, at, line)
            except InputError:
                raise
            except ValueError as error:
                yield Entry(id, None, {}, None, at, line, str(error))


def _same_keys(
    some: Mapping[str, tuple[str, int]],
    path: Path,
    others: Mapping[str, tuple[str, int]],
    other_path: Path,
) -> None:
    """Raise InputError unless two files have the same keys."""
    for id in (id for id in (*some, *others) if id not in some or id not in others):
        here, lines, there = (path, some, other_path) if id in some else (other_path, others, path)
        raise InputError(
            f"{id!r} is not in {there}; both need the same hypotheses", path=here, line=lines[id][1]
        )


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


def kaldi_keys(texts: Iterable[str]) -> list[str]:
    """Return the keys ``utterance-n`` by their n, in whatever order the file has them."""
    return sorted(texts, key=lambda key: int(whole_number(key.rpartition("-")[2]) or 0))


def read_kaldi(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of Kaldi's n-best lists, ``utterance-n words`` and a cost a file."""
    found = kaldi_files(path)
    if found is None:
        raise InputError(
            f"has no hypotheses ({' or '.join(_KALDI_TEXT)}) with costs (lm_cost, ac_cost, ...)",
            path=path,
        )
    texts = keyed_lines(found[0])
    costs = {name: keyed_lines(file) for name, file in found[1].items()}
    for name, lines in costs.items():
        _same_keys(texts, found[0], lines, found[1][name])
    for key in kaldi_keys(texts):
        text, line = texts[key]
        id, _, nth = key.rpartition("-")
        at = found[0]
        try:
            if not id or not whole_number(nth):
                raise ValueError(f"{key!r} is no utterance-n, with n from 1")
            features = {}
            for name, lines in costs.items():
                value, line = lines[key]
                at = found[1][name]
                features[name] = -number_in(value)
            yield Entry(id, text, features, None, at, line)
        except ValueError as error:
            yield Entry(id or key, None, {}, None, at, line, str(error))


def read_fairseq(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of fairseq's generate: H and, where it follows, D for the text.

    Scores are in base 2, and become natural logarithms.
    """
    open_entry: Entry | None = None
    for line, text in enumerate(iterate_lines(path), 1):
        match = FAIRSEQ.match(text)
        if match is None or match[1] not in "HDS":
            continue
        id, fields = int(match[2]), text.split("\t")
        if match[1] == "D" and open_entry is not None and open_entry.id == id:
            if len(fields) == 3 and not open_entry.error:
                open_entry = open_entry._replace(text=fields[2])
            continue
        if open_entry is not None:
            yield open_entry
            open_entry = None
        if match[1] == "S":
            yield Entry(id, None, {}, None, path, line)
            continue
        try:
            if len(fields) != 3:
                raise ValueError("is no `H-number score tokens`, with tabs between")
            score = number_in(fields[1]) * math.log(2)
            open_entry = Entry(id, fields[2], {}, score, path, line)
        except ValueError as error:
            open_entry = Entry(id, None, {}, None, path, line, str(error))
    if open_entry is not None:
        yield open_entry


def read_sockeye(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of Sockeye's JSON lines, which count from 1 and have costs."""
    for line, text in enumerate(iterate_lines(path), 1):
        record = _json_line(text, path, line)
        number = record.get("sentence_id") if isinstance(record, dict) else None
        if type(number) is not int or number < 1:
            raise InputError(
                f"sentence_id is {number!r}, and Sockeye counts from 1", path=path, line=line
            )
        texts = record.get("translations", [record.get("translation", "")])
        costs = record.get("scores", [record.get("score")])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError("translations must be a list of strings", path=path, line=line)
        if not isinstance(costs, list):
            raise InputError("scores must be a list", path=path, line=line)
        if len(texts) != len(costs):
            raise InputError(
                f"has {len(texts)} translations and {len(costs)} scores; it needs as many",
                path=path,
                line=line,
            )
        yield Entry(number - 1, None, {}, None, path, line)
        for translation, cost in zip(texts, costs, strict=True):
            try:
                values = [-_json_value(c) for c in (cost if isinstance(cost, list) else [cost])]
                names = [SCORE, *(f"factor{i}" for i in range(1, len(values)))]
                features = dict(zip(names, values, strict=True)) if len(values) > 1 else {}
                yield Entry(number - 1, translation, features, values[0], path, line)
            except ValueError as error:
                yield Entry(number - 1, None, {}, None, path, line, str(error))


def read_hypo2trans(path: Path, sizes: Sizes = None) -> Iterator[Entry]:
    """Yield the entries of a JSON array of ``{"input": [texts], "output": reference}``."""
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
    for number, record in enumerate(records):
        texts = record.get("input") if isinstance(record, dict) else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f'item {number} is no {{"input": [texts], "output": reference}}', path=path
            )
        reference = record.get("output")
        references = [reference] if isinstance(reference, str) else []
        yield Entry(number, None, {}, None, path, None, references=references)
        for text in texts:
            yield Entry(number, text, {}, None, path, None)


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
    lines = read_lines(path)
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
                text, score = split(lines[line - 1])
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
