"""Text files: damaged, and compared with what a simple reader makes of them."""

import gzip
from functools import partial

import numpy as np
import simple_readers as simple
from mutations import mutated
from targets import Different, Target, drawer

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.grammar import read_alignments, read_grammar
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.kbest import forms
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.moses_tuning_files import read_tuning_files
from torchtune_smt.lm import read_arpa
from torchtune_smt.metrics import ExternalScores
from torchtune_smt.tuners.grouping.groups import read_groups

MOSES = """0 ||| das ist ein haus  ||| D= 0 -7.5 LM= -41.3 W_das~the= 1 ||| -4.4 ||| 0-0
0 ||| ein haus ||| D= 1 -7.25 LM= -40 ||| -4.5
1 ||| für uns ||| LM= -1e-3 D= 0.5 2 W_x= 2 W_y= -1.0000000000000000001 ||| 12345678901234567890
"""
CDEC = """0 ||| das ist ein haus ||| D=0.5 w:a=b=1 w:x=-2 ||| -4.4
0 ||| ein haus ||| D=-1e-3 E=2 ||| -4.5 ||| 0.3
1 ||| für uns ||| w:x=3.0000000000000000000001 ||| 1
"""
FEATURES = """FEATURES_TXT_BEGIN_0 0 2 3 D_0 D_1 LM_0
0 -7.5 -41.3 W_das~the=1
1 2 3.00000000000000000000001
FEATURES_TXT_END_0
FEATURES_TXT_BEGIN_0 1 1 3 D_0 D_1 LM_0
0.5 2 1e-3 W_x=2 W_y=-1
FEATURES_TXT_END_0
"""
SCORES = """SCORES_TXT_BEGIN_0 0 2 9 BLEU
7 9 4 8 2 7 1 6 10
8 9 5.0000000000000000000 8 3 7 1 6 10
SCORES_TXT_END_0
SCORES_TXT_BEGIN_0 1 1 9 BLEU
1 2 0 1 0 0 0 0 3
SCORES_TXT_END_0
"""
SCORED = """0 ||| das ist ein haus ||| 0.25
1 ||| für uns ||| -2e-1
0 |||  ||| 12345678901234567890
0|||ein  haus |||1
"""
RULES = """[X] ||| [X,1] europas ||| europe 's [X,1] ||| EgivenF=1.5 Lex=-0.25 ||| 1-0 1-1
[X] ||| [X,1] von [X,2] ||| [2] 's [1] ||| Lex=1e-3 EgivenF=2
[X] ||| haus ||| house ||| 0.5 .25 EgivenF=.5
[X] ||| ja ||| ||| EgivenF=0.10000000000000000000001
[X] ||| haus ||| house ||| EgivenF=7
"""
MOSES_RULES = """haus [X] ||| house [X] ||| 0.1 0.9 0.5 1e-3 ||| 0-0 ||| 1 1
ein [X][X] haus [X] ||| a [X][X] house [X] ||| 1 0 0.3 0.2 ||| 0-0 1-1 2-2 |||
[X][X] do not [X][X] [X] ||| [X][X] n' ai [X][X] pas [X] ||| 0.1 0.9 0.9 0.9 ||| 3-3 0-0
[X][X] von [X][X] [X] ||| [X][X] 's [X][X] [X] ||| 0.1 0.9 0.9 0.5 ||| 2-0 0-2
"""
PHRASES = """ein  haus ||| a house ||| 0.5 .25 1 1e-3 ||| 0-0 1-1 ||| 2 4 1 ||| |||
ein ||| a ||| 0.5 0.5 0.30000000000000000000001 0 ||| ||| 8 9 7
ein ||| one ||| 1 1 1 1
nun ||| ||| 1 1 1 1
ein ||| a ||| 1 1 1 1 ||| 0-0
"""
ARPA = """made by hand

\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-1.5\t<UNK>
-99\t<s>\t-0.30103
-0.5\t</s>
-0.7000000000000000000001\tfür\t-0.25
-7e-1\ta\t0

\\2-grams:
-0.1\t<s> a\t-0.2
-0.1\ta für
-0.25 für </s> 0.1

\\3-grams:
-0.01\t<s> a für

\\end\\
"""
WEIGHTS = """# name value
EgivenF 1.0
w:a=b\t-2.5e-3
  LM0=0.5
a b 12345678901234567890
"""
GROUPS = "group\tweight\tsize\tfeature\n0\t0.5\t1\td\n1\t-2e-1\t2\tw:haus\n1\t-0.2\t2\tw:a=b c\n"
LISTED = "0 ||| a ||| f=1 ||| 1\n0 ||| b ||| f=1 ||| 1\n1 ||| a ||| f=1 ||| 1\n"
COLUMN = "id\tcomet\trank\n0\t0.5\t2\n0\t-2e-1\t1\n1\t .25\t1\n"
KEYS = [("0", 1), ("0", 2), ("1", 1)]
ALIGNMENT = "0-0 1-1 10-3\n\n2-0\t0-2\n"
SOURCE = "das ist  ein haus\nfür uns\n\nja\n"
TARGET = "this is a house\nfor us\nno\nyes\n"

# What means something in some format, and what some program or other takes for a blank, a line
# end or a digit.
TOKENS = [
    *(letter.encode() for letter in " \t\n\r=_#-019.\u00a0\u2009\u3000\u2028\x85\ufeff\u0661"),
    *b"\r\n;\x0b;\x0c;\x1c;\x00;|||; ||| ;[X]; [X] ;[X][X];[X,1];[1];[X,2];[Y]".split(b";"),
    *b"<s>; <UNK>; 1e999 ; nan ; 1_0 ; 99999999999999999999 ; 0.10000000000000000555".split(b";"),
    *b" a=1 ; A_b= 1 ;_TXT_BEGIN_0 ;FEATURES_TXT_END_0\n;\\end\\\n;\\2-grams:\n".split(b";"),
]  # fmt: skip


def _rows(stored, with_words):
    """Return stored lists as the simple readers have them."""
    stored.lists.check()
    rows = []
    for kbest in stored.lists:
        assert kbest.features is not None and (kbest.words is not None) == with_words
        for h in range(len(kbest)):
            features = kbest.features.named(*kbest.row(h))
            tokens = [] if kbest.words is None else kbest.words.names(kbest.hypothesis(h))
            statistics = [] if kbest.statistics is None else kbest.statistics[h].tolist()
            rows.append((kbest.index, tokens, features, statistics))
    return rows


def _lists(format, path):
    return _rows(read_lists(path, format, missing=None if format == "moses" else 0.0), True)


def _column(path):
    stored = forms.read_lists(_beside(path, LISTED), columns={"comet": path})
    return [row[2].get("comet", 0.0) for row in _rows(stored, True)]


def _weights(path):
    names, values = read_weights(path)
    return names.named(range(len(names)), values)


def _groups(path):
    features = Vocabulary(["d"])
    groups, weights = read_groups(path, features, 1)
    names = features.names(range(len(features)))
    return {n: (g, float(weights[g])) for n, g in zip(names, groups.group.tolist(), strict=True)}


def _grammar(format, path):
    table = read_grammar(path, format)
    found = {}
    for rule in range(len(table)):
        side = table.rule_source[rule]
        source = table.source_symbols[slice(*table.source_begin[side : side + 2])].tolist()
        target = table.target_symbols[slice(*table.target_begin[rule : rule + 2])].tolist()
        number = 0
        left = []
        for symbol in source:
            number += symbol < 0
            left.append(number if symbol < 0 else table.source_words[symbol])
        right = [-symbol if symbol < 0 else table.target_words[symbol] for symbol in target]
        values = table.dense[rule].tolist()
        if format == "moses":
            values = simple.digits(values)
        found[tuple(left), tuple(right)] = values
    return table.dense_names, found


def _phrases(path):
    table = read_phrase_table(path)
    found = {}
    for rule in range(len(table)):
        source, target = table.rule_text(rule)
        links = []
        if table.point_begin is not None and table.points is not None:
            links = [(s, t) for s, t in table.points[slice(*table.point_begin[rule : rule + 2])]]
        found[tuple(source), tuple(target)] = (simple.digits(table.dense[rule].tolist()), links)
    return found


def _arpa(path):
    """Return n-grams with numbers to six digits: float32 holds no more."""
    ngrams = read_arpa(path)
    orders = []
    for rows, probs, backoffs in zip(ngrams.rows, ngrams.prob, ngrams.backoff, strict=True):
        grams = [tuple(ngrams.words.names(row)) for row in rows]
        orders.append(list(zip(grams, map(_short, probs), map(_short, backoffs), strict=True)))
    return orders


def _simple_arpa(data):
    orders = simple.arpa(data)
    orders[0] = {("<unk>",): orders[0].get(("<unk>",), (-100.0, 0.0)), **orders[0]}
    return [[(gram, *map(_short, pair)) for gram, pair in found.items()] for found in orders]


def _short(number):
    return float(f"{np.float32(number):.6g}")


def _compared(target, text, read, simple_read):
    """Return the target of a reader of one file."""

    def open(folder):
        whole = text.encode()
        assert read(_put(folder, whole, 0)) == simple_read(whole)

        def check(case):
            draw = drawer(target, case)
            data = _damaged(whole, draw)
            return same(lambda: read(_put(folder, data, case)), lambda: simple_read(data))

        return check

    return Target(open)


def _damaged(data, draw):
    """Return a text that is damaged, some with other line ends, or a byte order mark."""
    end = draw.choice([b"\n", b"\n", b"\r\n", b"\r"])
    mark = draw.choice([b"", b"", b"\xef\xbb\xbf"])
    return mutated(mark + data.replace(b"\n", end), draw, ALL, TOKENS)


def _put(folder, data, case, name="text"):
    path = folder / (f"{name}.gz" if case % 4 == 3 else name)
    path.write_bytes(gzip.compress(data, 1) if case % 4 == 3 else data)
    return path


def same(read, simple_read):
    """Compare what both readers say: they must refuse the same files."""
    expected, found = None, None
    try:
        expected = simple_read()
    except simple.Refused:
        try:
            found = read()
        except InputError as error:
            if not str(error).isprintable() or len(str(error)) > 5000:
                raise Different(f"no message to read: {error}") from None
            raise
        raise Different(f"takes what is bad, as {found!r}") from None
    try:
        found = read()
    except InputError as error:
        raise Different(f"refuses what is good: {error}") from None
    if found != expected:
        raise Different(f"{found!r} instead of {expected!r}")
    return "same"


def _nbest_skipping(folder):
    """Leave lines with a fault out: the others are read as a file of them alone would be."""

    def check(case):
        draw = drawer("nbest-skipping", case)
        format = draw.choice(("moses", "cdec"))
        data = _damaged((MOSES if format == "moses" else CDEC).encode(), draw)
        path = _put(folder, data, case)
        missing = None if format == "moses" else 0.0
        stored = read_lists(path, format, on_error="skip", missing=missing)
        data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
        # One that has both has a fault where it has the other.
        lines = data.split(b"\n" if b"\n" in data else b"\r")
        kept = (stored.lists.entries() - 1).tolist()
        lines = lines[:-1] if lines[-1] == b"" else lines
        own = partial(simple.hypotheses, moses=format == "moses", in_order=False)
        expected = own(b"\n".join(lines[i] for i in kept))
        if _rows(stored, True) != expected:
            raise Different(f"{_rows(stored, True)} instead of {expected}")

        def is_good(line):
            try:
                # In the company of one that is kept, which says what the dense features are.
                return own(lines[kept[0]] + b"\n" + line + b"\n") != []
            except simple.Refused:
                return False

        good = [i for i, line in enumerate(lines) if is_good(line)]
        unordered = stored.skipped.get("lines out of order", 0)
        if not {*kept} <= {*good} or len(good) - len(kept) != unordered:
            raise Different(f"lines {kept} are kept, {good} are good, {unordered} out of order")
        return "same"

    return check


def _corpus(*paths):
    corpus = read_corpus(paths[0], paths[1:], empty="skip")
    return [corpus.source, corpus.targets, corpus.lines]


def _beside(path, text):
    """Write the good one of two files."""
    other = path.with_name("other")
    other.write_text(text, "utf-8")
    return other


# A good text, the reader of such files, and a simple one.
# A good text, the reader of such files, and a simple one.
READERS = {
    "nbest-moses": (MOSES, partial(_lists, "moses"), partial(simple.hypotheses, moses=True)),
    "nbest-cdec": (CDEC, partial(_lists, "cdec"), partial(simple.hypotheses, moses=False)),
    "external-scores": (SCORED, lambda path: ExternalScores(path).scores, simple.external),
    **{
        f"grammar-{form}": (text, partial(_grammar, form), partial(simple.grammar, format=form))
        for form, text in (("cdec", RULES), ("joshua", RULES), ("moses", MOSES_RULES))
    },
    "phrase-table": (PHRASES, _phrases, simple.phrases),
    "arpa": (ARPA, _arpa, _simple_arpa),
    "column": (COLUMN, _column, partial(simple.column, name="comet", keys=KEYS)),
    "column-by-line": (
        "0.5\n-2e-1\n 3\n",
        _column,
        partial(simple.column, name="comet", keys=KEYS),
    ),
    "weights": (WEIGHTS, _weights, simple.weights),
    "alignments": (
        ALIGNMENT,
        lambda path: [links.tolist() for links in read_alignments(path)],
        simple.alignments,
    ),
    "groups": (GROUPS, _groups, simple.groups),
    "features.dat": (
        FEATURES,
        lambda path: _rows(read_tuning_files(path, _beside(path, SCORES)), False),
        lambda data: simple.tuning_files(data, SCORES.encode()),
    ),
    "scores.dat": (
        SCORES,
        lambda path: _rows(read_tuning_files(_beside(path, FEATURES), path), False),
        lambda data: simple.tuning_files(FEATURES.encode(), data),
    ),
    "bitext": (
        SOURCE,
        lambda path: _corpus(path, _beside(path, TARGET)),
        lambda data: [*simple.bitext(data, TARGET.encode(), True)],
    ),
}
ALL = [text.encode() for text, _, _ in READERS.values()]
TARGETS = {
    **{name: _compared(name, *reader) for name, reader in READERS.items()},
    "nbest-skipping": Target(_nbest_skipping),
}
