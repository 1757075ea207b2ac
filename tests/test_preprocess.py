import re
import unicodedata
from html import unescape

import pytest
import sacremoses
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.text import RESERVED, UNKNOWN_WORDS
from torchtune_smt.data.preprocess import Detokenizer, LengthFilter, Preprocessor, protected

LINE = "Herr Dr. Müller sagt: „Das ist z.B. gut“ – oder?"


def test_all_steps() -> None:
    assert Preprocessor("de").tokens(LINE) == (
        'herr dr. müller sagt : " das ist z.b. gut " - oder ?'.split()
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("lowercase", False, 'Herr Dr. Müller sagt : " Das ist z.B. gut " - oder ?'),
        ("normalize", False, "herr dr. müller sagt : „ das ist z.b. gut “ – oder ?"),
        ("tokenize", False, 'herr dr. müller sagt: "das ist z.b. gut" - oder?'),
        ("escape", True, "herr dr. müller sagt : &quot; das ist z.b. gut &quot; - oder ?"),
    ],
)
def test_each_step_alone_changes_the_text(option: str, value: bool, expected: str) -> None:
    assert " ".join(Preprocessor(**{"language": "de", option: value}).tokens(LINE)) == expected


def test_the_language_decides_about_apostrophes() -> None:
    assert Preprocessor("en").tokens("I don't") == ["i", "don", "'t"]
    assert Preprocessor("it").tokens("l'arte") == ["l'", "arte"]


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("ga", "Ba mhaith liom uisce a d'ól, b'fhéidir.", "uisce a d' ól , b' fhéidir ."),
        ("ca", "L'home del col·legi d'aquí.", "l' home del col·legi d' aquí ."),
        ("ca", "Un punt · i un altre; PARAL·LEL", "· i un altre ; paral · lel"),
        ("fr", "L'homme qu'il voit", "l' homme qu' il voit"),
        ("fi", "EU:n jäsen, USA:han 20:een: näin", "eu:n jäsen , usa:han 20:een : näin"),
        ("fi", 'Hän sanoi:"Tule" ja A:B', 'sanoi : " tule " ja a : b'),
        ("sv", "USA:s S:t Eriks: ja", "usa:s s:t eriks : ja"),
        ("so", "Waa la'aan go'an.", "waa la'aan go'an ."),
        ("so", "a 'go' la' b", "a ' go ' la ' b"),
        ("tdt", "Ha'u nia na'in.", "ha'u nia na'in ."),
        ("de", "EU:n geht's", "eu : n geht ' s"),
    ],
)
def test_marks_that_a_language_has_within_words(language: str, line: str, expected: str) -> None:
    """Rules of Moses's tokenizer.perl; what was split is joined again."""
    tokens = Preprocessor(language).tokens(line)
    assert " ".join(tokens).endswith(expected)
    if language in ("ca", "ga", "fr") and "'" in line:
        assert Detokenizer(language).line(tokens) == line.lower()


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("en", "I am here. He is there.", "i am here . he is there ."),
        ("en", "See No. 5 and Mr. Smith.", "see no. 5 and mr. smith ."),
        ("de", "Haus Nr. eins. Er kommt.", "haus nr. eins . er kommt ."),
    ],
)
def test_the_tokeniser_sees_capitals(language: str, line: str, expected: str) -> None:
    assert Preprocessor(language).tokens(line) == expected.split()


LANGUAGES = st.sampled_from(["de", "en", "fr", "fi", "fa", "ca", "tdt"])
MARKS = "\u0300\u0308\u0323\u200c\u200d\ufe0f\u20e3"
TEXT = st.text(st.one_of(st.sampled_from(f"aAbß.,'- (|\u00df❤\U0001f3fd{MARKS}"), st.characters()))


@given(LANGUAGES, TEXT, st.booleans())
def test_lowercasing_comes_last(language: str, line: str, escape: bool) -> None:
    options = {"normalize": False, "escape": escape, "protect": False}
    cased = Preprocessor(language, lowercase=False, **options).tokens(line)
    small = Preprocessor(language, **options).tokens(line)
    assert small == " ".join(cased).replace("İ", "i").lower().split(" ") if cased else not small


def has_marks(line: str) -> bool:
    return any(c in "\u200c\u200d" or unicodedata.category(c)[0] == "M" for c in line)


@given(
    st.sampled_from(["de", "en", "fr", "it", "fa", "cs"]),
    st.text(st.one_of(st.sampled_from("aB.,'- ()é„“"), st.characters())),
)
def test_text_without_marks_becomes_what_moses_makes_of_it(language: str, line: str) -> None:
    line = "".join(c for c in line if not has_marks(c))
    moses = sacremoses.MosesTokenizer(language).tokenize(line, return_str=True, escape=False)
    text = Preprocessor(language, lowercase=False, normalize=False, protect=False)
    assert text.tokens(line) == re.findall("[^ \t\n\r]+", moses)


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("de", "eine scho\u0308ne Sa\u0308nfte", "eine schöne sänfte"),
        ("yo", "Ọ\u0300rọ\u0300 náà, ẹ\u0300kọ́.", "ọ\u0300rọ\u0300 náà , ẹ\u0300kọ́ ."),
        ("fa", "می\u200cخواهم (می\u200cروم).", "می\u200cخواهم ( می\u200cروم ) ."),
        ("en", "the Y\u0300's end, Ọ\u0300. A", "the ỳ 's end , ọ\u0300 . a"),
        ("de", "Donau\u00addampf\u00adschiff", "donaudampfschiff"),
        # Small letters are composed whose capitals are not.
        ("en", "J\u030cx", "ǰx"),
        # A sign stands alone, with all that it is joined to.
        ("en", "we❤\ufe0fyou", "we ❤\ufe0f you"),
        ("en", "(👩\U0001f3fd\u200d🚒)", "( 👩\U0001f3fd\u200d🚒 )"),
        ("en", "1\ufe0f\u20e3!", "1\ufe0f\u20e3 !"),
        # Letters that stand for marks elsewhere.
        ("en", "\ua000o\u0323\u0300 \ue000❤\ufe0f", "\ua000ọ\u0300 \ue000 ❤\ufe0f"),
    ],
)
def test_marks_and_joiners_stay_with_their_word(language: str, line: str, expected: str) -> None:
    assert Preprocessor(language).tokens(line) == expected.split(" ")


INVISIBLE = [
    *map(chr, (0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0x202B, 0x202E, 0x2060, 0x2062)),
    *map(chr, (0x2067, 0x206F, 0xFEFF, 0xFFF9, 0x7F, 0x93, 0x34F, 0x17B4, 0xE0001, 0xE0041)),
]


@pytest.mark.parametrize("what", [*INVISIBLE, "\u200c", "\u200d", "\u200b\u200c"])
def test_what_nobody_sees_makes_no_words(what: str) -> None:
    line = f"{what}Das {what} Haus{what}, Me{what}er {what}3{what}{what}/{what}4 http://x.org/{what}{what}"
    for language in ("de", "en", "fr"):
        expected = "das haus , meer 3/4 http://x.org/".split()
        assert Preprocessor(language).tokens(line) == expected
    lowercased = Preprocessor("de", tokenize=False).tokens(line)
    assert lowercased == "das haus, meer 3/4 http://x.org/".split()


def test_what_fills_a_place_is_a_blank_and_a_selector_of_nothing_is_none() -> None:
    words = Preprocessor("ko").tokens("\ufe0f가\u3164나 \ufe0e\U000e0100 ❤\ufe0f \u115f")
    assert words == ["가", "나", "❤\ufe0f"]


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        # Persian: a word of two parts; twice is once, and at the end of a word it is nothing.
        (
            "fa",
            "می\u200cخواهم می\u200c\u200cروم می\u200c است\u200f",
            "می\u200cخواهم می\u200cروم می است",
        ),
        # Malayalam and Hindi: other letters than without.
        ("ml", "അവന്\u200d വന്നു", "അവന്\u200d വന്നു"),
        ("hi", "क्\u200dष क्\u200cष क्ष", "क्\u200dष क्\u200cष क्ष"),
        ("km", "ខ្ញុំ\u200bស្រឡាញ់", "ខ្ញុំ ស្រឡាញ់"),
        ("ar", "\u200fكتاب\u200f \u0600\u0661", "كتاب \u0600 \u0661"),
        ("en", "👩\u200d🚒 ❤\ufe0f\u200d🔥", "👩\u200d🚒 ❤\ufe0f\u200d🔥"),
        (
            "en",
            "in \U0001f3f4\U000e0067\U000e0062\U000e007f!",
            "in \U0001f3f4\U000e0067\U000e0062\U000e007f !",
        ),
    ],
)
def test_joiners_stay_where_they_are_seen(language: str, line: str, expected: str) -> None:
    assert Preprocessor(language).tokens(line) == expected.split(" ")


def test_a_mark_of_its_own_token_is_escaped_as_its_sign_is() -> None:
    assert Preprocessor("en", escape=True).tokens('a|\u0308"\u0308') == (
        ["a", "&#124;\u0308", "&quot;\u0308"]
    )


@given(LANGUAGES, TEXT)
def test_no_character_is_lost_or_made(language: str, line: str) -> None:
    tokens = Preprocessor(language, lowercase=False, normalize=False).tokens(line)
    kept = [c for c in line if not c.isspace() and c >= " "]
    assert sorted("".join(tokens)) == sorted(kept)


@given(st.text(st.sampled_from(f"abc éọ{MARKS}")))
def test_no_mark_parts_a_word(line: str) -> None:
    assert Preprocessor("yo", normalize=False).tokens(line) == line.split()


def test_more_marks_than_there_are_letters_for_them() -> None:
    line = "".join(map(chr, range(0xA000, 0xA48D))) + "o\u0300"
    assert "".join(Preprocessor("en").tokens(line)) == unicodedata.normalize("NFC", line)
    line = "".join(map(chr, range(0xA000, 0xA48D))) + "ọ\u0300 x"
    assert "".join(Preprocessor("en").tokens(line)) == line.replace(" ", "")


@pytest.mark.parametrize("tokenize", [True, False])
def test_a_capital_i_with_a_dot_is_one_letter(tokenize: bool) -> None:
    assert Preprocessor("tr", tokenize=tokenize).tokens("İstanbul VİZE") == ["istanbul", "vize"]


def test_blanks_and_empty_lines() -> None:
    assert [Preprocessor("en").tokens(line) for line in ("A  test.", "")] == [
        ["a", "test", "."],
        [],
    ]


@given(st.text(st.one_of(st.sampled_from("a \t\u00a0\u3000\x0b\x1c"), st.characters())))
def test_no_step_only_splits_at_blanks_and_tabs(line: str) -> None:
    nothing = Preprocessor(lowercase=False, normalize=False, tokenize=False)
    assert nothing.tokens(line) == re.findall("[^ \t\n\r]+", line)


@given(st.text())
def test_tokens_hold_no_blanks(line: str) -> None:
    for word in Preprocessor("en").tokens(line):
        assert word
        assert not any(letter.isspace() for letter in word)


def test_detokenize() -> None:
    assert Detokenizer("en").line("i ca n't , it 's late .".split()) == "i can't, it's late."
    words = "two men aren &apos;t at the stove , preparing &quot; food &quot; .".split()
    assert Detokenizer("en").line(words) == 'two men aren\'t at the stove, preparing "food".'
    assert Detokenizer("en", capitalize=True).line(words).startswith("Two")
    assert Detokenizer("en", capitalize=True).line([]) == ""


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("es", "¿ dónde está ?", "¿Dónde está?"),
        ("en", '" yes , " he said', '"Yes," he said'),
        ("de", "ßa", "Ssa"),
        ("hr", "ǆep", "ǅep"),
        # What has no case, or a digit, begins the line already.
        ("en", "3 dogs run", "3 dogs run"),
        ("en", '" 3 dogs run', '"3 dogs run'),
        ("en", "中 a", "中 a"),
        ("en", "Yes", "Yes"),
        ("en", "...", "..."),
        # An apostrophe that is a letter by name.
        ("haw", "\u02bbo ia", "\u02bbO ia"),
        ("nl", "'s avonds", "'s Avonds"),
        ("en", "'t is", "'T is"),
    ],
)
def test_the_first_letter_becomes_a_capital(language: str, line: str, expected: str) -> None:
    assert Detokenizer(language, capitalize=True).line(line.split()) == expected


NAME = st.from_regex(r"[a-zA-Zü][a-zA-Z0-9_]{0,5}", fullmatch=True)
DIGITS = st.from_regex("[0-9]{1,3}", fullmatch=True)
HOST = st.builds("{}.{}.{}".format, NAME, NAME, st.sampled_from(["org", "de", "museum"]))
PATH = st.from_regex(r"[a-zA-Z0-9/?=&%#:;,.'~|@+{$-]{0,12}[a-zA-Z0-9/=]", fullmatch=True)
KEPT = st.one_of(
    st.builds("{}{}/{}".format, st.sampled_from(["http://", "HTTPS://", "ftp://", ""]), HOST, PATH),
    st.builds("www.{}".format, HOST),
    st.builds("{}{}@{}".format, st.sampled_from(["", "mailto:"]), NAME, HOST),
    st.builds(
        "{}{}{}{}".format, DIGITS, st.sampled_from(":/'"), DIGITS, st.sampled_from(["", "h"])
    ),
    st.builds("{}:{}:{}".format, DIGITS, DIGITS, DIGITS),
    st.builds("{}{}".format, st.sampled_from(["+", "±", "−"]), DIGITS),
    st.builds("{}{}".format, st.sampled_from("#@"), NAME),
    st.builds("<{}{}>".format, NAME, st.sampled_from(["", "/"])).filter(
        lambda tag: tag not in RESERVED | UNKNOWN_WORDS
    ),
)
FRAMES = ["{}", "ab {} , cd", "( {} ) .", '" {} " !', "ab - {} ?", "Ab {} : 5 % ."]


@given(st.sampled_from(["de", "en", "fi", "ga"]), KEPT, st.sampled_from(FRAMES), st.booleans())
def test_what_is_protected_is_copied(language: str, what: str, frame: str, escape: bool) -> None:
    line = Detokenizer(language).line(frame.split()).format(what)
    tokens = Preprocessor(language, escape=escape).tokens(line)
    assert [unescape(token) for token in tokens] == frame.lower().format(what).split()
    expected = Detokenizer(language).line(frame.lower().split()).format(what)
    assert Detokenizer(language, verbatim=not escape).line(tokens) == expected
    if frame.startswith("{}"):
        assert Detokenizer(language, capitalize=True, verbatim=not escape).line(tokens) == expected


@pytest.mark.parametrize(
    "line",
    [
        "http://www.example.org/a?b=c um 10:30 uhr, 3/4.",
        "siehe (http://example.org/foo_(bar)), me@example.org!",
        '<b>fett</b>, <i>schräg <b>und</b></i>. <br/> neu <br /> <a href="x.org/a">da</a>',
        "<b>",
        "<me@example.org> joh 3:16-18, 10:30-11:00pm, 1'000.50, 20°C, +49 30 123",
        "http://x.org/?a=1&amp;b=2&lt;",
        "am 12/05/2020 um 10.30: 127.0.0.1:8080",
    ],
)
def test_protected_text_comes_back(line: str) -> None:
    assert Detokenizer("de", verbatim=True).line(Preprocessor("de").tokens(line)) == line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a < b und c > d", "a < b und c > d"),
        ("<s>Wort</s> <unk>", "< s > wort < / s > < unk >"),
        ("und/oder: A4/B5 5 km/h", "und / oder : a4 / b5 5 km / h"),
        ("WWW.Example.org, Me@Example.ORG.", "WWW.Example.org , Me@Example.ORG ."),
        ("Nr. 5: um 10.30 Uhr. Gut", "nr. 5 : um 10.30 uhr . gut"),
        ("日http://x.org/。", "日 http://x.org/ 。"),
    ],
)
def test_words_beside_what_is_protected(line: str, expected: str) -> None:
    assert Preprocessor("de").tokens(line) == expected.split()


def test_capitals_behind_what_is_protected() -> None:
    capital = Detokenizer("en", capitalize=True)
    assert capital.line(["<b>", '"', "ja", '"', "</b>"]) == '<b>"Ja"</b>'
    assert capital.line(["me@example.org", "writes"]) == "me@example.org writes"
    assert capital.line(["see", "me@example.org"]) == "See me@example.org"


def test_more_protected_words_than_there_are_letters_for_them() -> None:
    line = " ".join(f"{i}:1" for i in range(7000))
    tokens = Preprocessor("en").tokens(line)
    assert tokens[:2] == ["0:1", "1:1"] and "".join(tokens) == line.replace(" ", "")


@pytest.mark.parametrize("piece", ["a.", "<a ", "a@", "1:", "(", "http://", '<a x="', "<", "a-"])
def test_long_words_take_no_longer_than_others(piece: str) -> None:
    # Hours, if each character looked at all others.
    line = piece * 200_000
    assert all(line.startswith(what, begin) for begin, what, _ in protected(line))


def test_length_filter() -> None:
    limits = LengthFilter(max_length=10, max_ratio=3)
    assert limits.reason(10, 4) is None
    assert limits.reason(3, 9) is None
    assert limits.reason(11, 10) == "too long"
    assert limits.reason(10, 11) == "too long"
    assert limits.reason(1, 4) == "of too different lengths"
    assert limits.reason(10, 3) == "of too different lengths"
