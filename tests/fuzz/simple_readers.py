"""Readers of all text formats, as simple as can be: slow, in pure Python, of no package's code.

Each takes the bytes of files and returns what they say, or raises `Refused`. A hypothesis is its
sentence, words, features that are not 0, and statistics; sides of rules have gaps 1 and 2.
"""

import math
import re


class Refused(Exception):
    """The file is bad."""


def check(good, what=""):
    if not good:
        raise Refused(what)


def matched(pattern, text):
    match = re.fullmatch(pattern, text)
    check(match, text)
    return match


def lines(data):
    """Return the lines of a text."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("UTF-8") from None
    check("\0" not in text, "zero byte")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    check(not ("\r" in text and "\n" in text), "mixed line ends")
    found = re.split("[\r\n]", text)
    return found[:-1] if found[-1] == "" else found


def words(line):
    return re.findall("[^ \t]+", line)


def fields(line):
    """Return the words of each field."""
    found = [[]]
    for word in words(line):
        if word == "|||":
            found.append([])
        else:
            found[-1].append(word)
    return found


def whole(word):
    return int(matched("[0-9]{1,9}", word)[0])


def real(word):
    matched(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?", word)
    check(math.isfinite(float(word)), f"number {word}")
    return float(word)


def digits(values):
    """Return logarithms without their last bit, which is a library's own."""
    return [float(f"{value:.14g}") for value in values]


def named(word):
    """Return name and value of ``name=value``."""
    name, equals, value = word.rpartition("=")
    check(equals == "=" and name != "", f"name {word}")
    return name, real(value)


def without_zeros(pairs):
    """Return features that are not 0; none may occur twice, or look like a comment."""
    check(len(dict(pairs)) == len(pairs), "twice")
    check(not any(name.startswith("#") for name, _ in pairs), "comment")
    return {name: value for name, value in pairs if value != 0}


def ordered(rows):
    """Return rows whose sentences count from 0 without gaps."""
    check(len(rows) > 0, "empty")
    last = -1
    for sentence, *_ in rows:
        check(last <= sentence <= last + 1 and sentence >= 0, "order")
        last = sentence
    return rows


def hypotheses(data, moses, in_order=True):
    """Read n-best lists."""
    rows, known = [], None
    for line in lines(data):
        parts = fields(line)
        check(len(parts) >= 4 and len(parts[0]) == len(parts[3]) == 1)
        real(parts[3][0])
        if moses:
            pairs, widths = labelled(parts[2])
            known = widths if known is None else known
            check(widths == known, "labels")
        else:
            pairs = [named(word) for word in parts[2]]
        rows.append((whole(parts[0][0]), parts[1], without_zeros(pairs), []))
    return ordered(rows) if in_order else rows


def labelled(tokens):
    """Return the features of ``Label= v v ...``, and how many values the dense labels have."""
    groups = []
    for token in tokens:
        if token.endswith("="):
            check(token != "=")
            groups.append((token[:-1], []))
        else:
            check(len(groups) > 0)
            groups[-1][1].append(real(token))
    pairs, widths = [], {}
    for label, values in groups:
        check(len(values) > 0)
        if len(values) == 1 and "_" in label:
            pairs.append((label, values[0]))
        else:
            check(label not in widths)
            widths[label] = len(values)
            pairs += [(f"{label}_{i}", value) for i, value in enumerate(values)]
    return pairs, widths


def blocks(data, kind):
    """Yield sentence, lines, values of a line and names of the blocks of a tuning file."""
    head, inside = None, []
    for line in lines(data):
        mark = re.match(r"(FEATURES|SCORES)_([A-Z]*)_(BEGIN|END)_0\b(.*)", line, re.ASCII)
        if mark is None:
            inside.append(line)
            continue
        check(mark[1] == kind and mark[2] == "TXT")
        if mark[3] == "BEGIN":
            check(head is None and not any(words(other) for other in inside))
            head = words(mark[4])
        else:
            check(head is not None and len(head) >= 3 and words(mark[4]) == [])
            sentence, size, width = map(whole, head[:3])
            check(size == len(inside) and (kind == "SCORES" or width == len(head) - 3))
            yield sentence, inside, width, head[3:]
            head = None
        inside = []
    check(head is None and not any(words(other) for other in inside))


def tuning_files(features, scores):
    """Read Moses's features.dat and scores.dat."""
    left, right = list(blocks(features, "FEATURES")), list(blocks(scores, "SCORES"))
    check(len(left) == len(right) > 0)
    rows = []
    for block, (other, more, nine, metric) in zip(left, right, strict=True):
        sentence, some, width, names = block
        check(sentence == other and len(some) == len(more) and names == left[0][3])
        check(nine == 9 and metric == ["BLEU"])
        for line, counts in zip(some, more, strict=True):
            tokens, numbers = words(line), [real(word) for word in words(counts)]
            check(len(tokens) >= width and len(numbers) == 9)
            check(all(n == int(n) and 0 <= n < 2**30 for n in numbers))
            pairs = list(zip(names, map(real, tokens[:width]), strict=True))
            pairs += [named(token) for token in tokens[width:]]
            m, h, r = numbers[:8:2], numbers[1:8:2], numbers[8]
            check(all(matches <= ngrams for matches, ngrams in zip(m, h, strict=True)))
            statistics = [int(n) for n in (*m, *h, h[0], r)]
            rows.append((sentence, [], without_zeros(pairs), statistics))
    return ordered(rows)


def external(data):
    """Read scores of hypotheses."""
    found = {}
    for line in lines(data):
        first, last = line.find("|||"), line.rfind("|||")
        check(0 <= first <= last - 3)
        sentence, score = words(line[:first]), words(line[last + 3 :])
        check(len(sentence) == len(score) == 1)
        hypotheses = found.setdefault(whole(sentence[0]), {})
        text = " ".join(words(line[first + 3 : last]))
        check(hypotheses.setdefault(text, real(score[0])) == real(score[0]))
    return found


def column(data, name, keys):
    """Return a value for each (id, rank), which are hypotheses in their order."""
    rows = [line.split("\t") for line in lines(data)]
    check(rows != [], "no value")

    def is_number(field):
        try:
            real(field.strip(" "))
        except Refused:
            other = field.strip(" ").lower()
            return re.fullmatch("na|none|[+-]*(inf|infinity|nan)", other) is not None or not other
        return True

    if all(map(is_number, rows[0])):
        names, lookup = [name], [[*row] for row in rows]
    else:
        names, *lookup = rows
    check(name in names and all(len(row) == len(names) for row in lookup), "columns")
    values = [real(row[names.index(name)].strip(" ")) for row in lookup]
    check(len(values) == len(keys), "as many")
    if {"id", "rank"} <= {*names}:
        places = [(row[names.index("id")], whole(row[names.index("rank")])) for row in lookup]
        check(sorted(places) == sorted(keys), "each once")
        found = dict(zip(places, values, strict=True))
        values = [found[key] for key in keys]
    return values


def weights(data):
    """Read weights."""
    found = {}
    for line in lines(data):
        line = line.strip(" \t")
        if line == "" or line.startswith("#"):
            continue
        match = matched("(.*)[ \t=]([^ \t=]+)", line)
        name = match[1].rstrip(" \t")
        check(name != "" and name not in found)
        found[name] = real(match[2])
    return found


def groups(data):
    """Read a table of groups, the first of which is a dense feature's: group and weight of each."""
    head, *rows = lines(data) or [""]
    check(head == "group\tweight\tsize\tfeature")
    found, sizes = {}, {}
    for row in rows:
        fields = row.split("\t", 3)
        check(len(fields) == 4 and fields[3] != "" and fields[3] not in found)
        found[fields[3]] = group, weight = whole(fields[0]), real(fields[1])
        check(0 < whole(fields[2]) == sizes.setdefault(group, whole(fields[2])))
        check(all(other[1] == weight for other in found.values() if other[0] == group))
    check(sorted(sizes) == [*range(len(sizes))])
    check(all(sum(g == group for g, _ in found.values()) == n for group, n in sizes.items()))
    check(found.get("d", (0, 0.0))[0] == 0 and sizes.get(0) == 1 and "d" in found)
    return found


def alignments(data):
    """Read word alignments."""
    found = []
    for line in lines(data):
        points = [matched("([^-]*)-([^-]*)", word) for word in words(line)]
        found.append([[*map(whole, point.groups())] for point in points])
    return found


def bitext(source, target, skip):
    """Read parallel text; return both sides, and the numbers of the lines that are kept."""
    sides = lines(source), lines(target)
    check(len(sides[0]) == len(sides[1]) > 0)
    kept = []
    for number, pair in enumerate(zip(*sides, strict=True), start=1):
        left, right = map(words, pair)
        check(not {"|||", "<s>", "</s>"} & {*left, *right})
        if left and right:
            kept.append((left, right, number))
        else:
            check(skip)
    check(len(kept) > 0)
    return [list(column) for column in zip(*kept, strict=True)]


def arpa(data):
    """Read n-grams: probability and back-off of each, order by order."""
    rest = lines(data)
    begins = [i for i, line in enumerate(rest) if line.startswith("\\data\\")]
    rest = [line.strip(" \t") for line in rest[begins[0] if begins else 0 :]]
    at = 0

    def next_line():
        nonlocal at
        while at < len(rest) and rest[at] == "":
            at += 1
        check(at < len(rest))
        at += 1
        return rest[at - 1]

    check(next_line() == "\\data\\")
    counts = []
    while not (line := next_line()).startswith("\\"):
        match = matched(r"ngram[ \t]+([0-9]{1,18})[ \t]*=[ \t]*([0-9]{1,18})", line)
        check(int(match[1]) == len(counts) + 1 <= 6 and int(match[2]) <= len(data))
        counts.append(int(match[2]))
    check(len(counts) > 0 and counts[0] > 0)
    at -= 1
    orders = []
    for n, count in enumerate(counts, start=1):
        check(next_line() == f"\\{n}-grams:")
        check(at + count <= len(rest))
        found = {}
        for line in rest[at : at + count]:
            check(not line.startswith("\\"))
            tokens = words(line)
            check(n + 1 <= len(tokens) <= n + 1 + (n < len(counts)))
            gram = tuple("<unk>" if token == "<UNK>" else token for token in tokens[1 : n + 1])
            prob, *backoff = (real(token) for token in (tokens[0], *tokens[n + 1 :]))
            check(prob <= 0 and all(abs(number) < 1e30 for number in (prob, *backoff)))
            if n == 1:
                check(gram not in found)
            else:
                check(all((word,) in orders[0] or word == "<unk>" for word in gram))
            found.setdefault(gram, (prob, *(backoff or [0.0])))
        at += count
        orders.append(found)
    check(next_line() == "\\end\\" and {("<s>",), ("</s>",)} <= orders[0].keys())
    return orders


def grammar(data, format):
    """Read a rule table: names of features, and their values for each rule."""
    rules, names = [], []
    for line in lines(data):
        parts = fields(line)
        if format == "moses":
            check(len(parts) >= 3)
            rule = moses_sides(parts[0], parts[1], parts[3] if len(parts) > 3 else [])
            tokens = parts[2]
        else:
            check(len(parts) >= 4 and parts[0] == ["[X]"])
            rule, tokens = cdec_sides(parts[1], parts[2]), parts[3]
            if format == "cdec":
                tokens = [part for token in tokens for part in token.split(";") if part]
        check(len(rule[0]) > 0 and rule[0] != (1,))
        values = []
        for token in tokens:
            if "=" in token and format != "moses":
                name, value = named(token)
                check(not name.startswith("#"))
                names += [name] * (name not in names)
                values.append((name, value))
            else:
                number = real(token)
                values.append((sum(isinstance(n, int) for n, _ in values), number))
        check(len({name for name, _ in values}) == len(values))
        rules.append((rule, values))
    check(len(rules) > 0)
    check(format != "moses" or all(len(values) == len(rules[0][1]) for _, values in rules))
    nameless = max(sum(isinstance(name, int) for name, _ in values) for _, values in rules)
    called = [f"tm_pt_{i}" if format == "joshua" else f"PhraseModel_{i}" for i in range(nameless)]
    if format == "moses" and nameless == 4:
        called = ["FgivenE", "LexFgivenE", "EgivenF", "LexEgivenF"]
    check(not {*called} & {*names})
    found = {}
    for rule, values in rules:
        row = dict.fromkeys([*called, *names], 0.0)
        for name, value in values:
            if format == "moses":
                check(value >= 0)
                value = math.log10(max(value, math.exp(-100)))
            if isinstance(name, int):
                row[called[name]] = -value if format == "joshua" else value
            else:
                row[name] = value
        found.setdefault(rule, (digits if format == "moses" else list)([*row.values()]))
    return [*called, *names], found


def phrases(data):
    """Read a phrase table: logarithms and links of each pair; counts must be numbers."""
    rows = []
    for line in lines(data):
        parts = [*fields(line), [], []]
        check(len(parts) >= 5 and len(parts[0]) > 0)
        source, target, probabilities, alignment, counts = parts[:5]
        values = [real(word) for word in probabilities]
        for word in counts:
            real(word)
        links = []
        for word in alignment:
            s, t = map(int, matched("([0-9]{1,9})-([0-9]{1,9})", word).groups())
            check(s < len(source) and t < len(target))
            links.append((s, t))
        rows.append(((tuple(source), tuple(target)), values, links))
    check(len(rows) > 0)
    found = {}
    for pair, values, links in rows:
        check(0 < len(values) == len(rows[0][1]) and min(values) >= 0)
        logs = digits([math.log(max(value, math.exp(-100))) for value in values])
        found.setdefault(pair, (logs, links))
    return found


def cdec_sides(source, target):
    """Return the sides of a rule of cdec or Joshua."""
    gaps = []

    def side(tokens, short):
        seen = []
        for token in tokens:
            if token == "[X]" and not short:
                # cdec's, without a number: the next one.
                token = f"[X,{len(gaps) + 1}]"
            match = re.fullmatch(r"\[(?:(.+),)?([0-9]{1,9})\]", token)
            if match is None or (match[1] is None and not short):
                yield token
                continue
            check(match[1] in (None, "X"))
            number = int(match[2])
            check(number not in seen)
            seen.append(number)
            if not short:
                gaps.append(number)
            check(number in gaps and len(gaps) <= 2)
            yield gaps.index(number) + 1
        check(len(seen) == len(gaps))

    return tuple(side(source, False)), tuple(side(target, True))


def moses_sides(source, target, alignment):
    """Return the sides of a rule of Moses."""
    points = []
    for token in alignment:
        s, minus, t = token.partition("-")
        check(minus == "-")
        points.append((whole(s), whole(t)))
        check(points[-1][0] < len(source) - 1 and points[-1][1] < len(target) - 1)
    places = []
    for tokens in (source, target):
        check(tokens[-1:] == ["[X]"] and "[X]" not in tokens[:-1])
        places.append([])
        for place, token in enumerate(tokens):
            if re.fullmatch(r"\[.+?\]\[.+\]", token):
                check(token == "[X][X]")
                places[-1].append(place)
    check(len(places[0]) == len(places[1]) <= 2)
    order = {place: i + 1 for i, place in enumerate(places[1])}
    if len(places[0]) == 2:
        # The last link of each gap of the source to one of the target.
        links = {s: t for s, t in points if s in places[0] and t in places[1]}
        order = {t: places[0].index(s) + 1 for s, t in links.items()}
        check(sorted(order.values()) == [1, 2])
    first = {place: n for n, place in enumerate(places[0], 1)}
    return tuple(
        tuple(gaps.get(i, token) for i, token in enumerate(side[:-1]))
        for side, gaps in ((source, first), (target, order))
    )
