"""The prose of the documentation is spelt as in British English: what is outside code and formulas.

A word must be in pyspellchecker's list of English words or in ``docs/spelling.txt``, one word a line. Lines that begin
with ``!`` are refused although that list has them: it is American.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache

import pytest

from docs_site import DOCS, ROOT

PAGES = [
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
#: What is not prose, in the order in which it is taken out.
NOT_PROSE = [
    re.compile(r"^(`{3,}).*?^\1`*[ ]*$", flags=re.DOTALL | re.MULTILINE),  # code, directives
    re.compile(r"^ {4,}(?![-*\d|]).*$", flags=re.MULTILINE),  # code by indentation; continued lists have less
    re.compile(r"<!--.*?-->", flags=re.DOTALL),
    re.compile(r"\$\$.*?\$\$", flags=re.DOTALL),
    re.compile(r"(?<!\\)\$[^$\n]+(?:\n[^$\n]+)?\$"),
    re.compile(r"\{\w+\}`[^`]*`"),  # roles
    re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", flags=re.DOTALL),  # code in a line
    re.compile(r"(?<=\])\([^)]*\)"),  # where a link leads
    re.compile(r"https?://\S+"),
    re.compile(r"\b[MQACFE]-[a-z0-9]+(?:-[a-z0-9]+)*\b"),  # ids
]
WORD = re.compile(r"(?<![\w‖∂\\/.^_{])[A-Za-zÀ-ÖØ-öø-ÿ]+(?:['’][a-z]+)?(?![\w^_=(\[/\\{]|\.\w|['’](?!\w))")
ENDINGS = re.compile(r"(iz(e|ed|es|er|ers|ing|ation|ations)|yz(e|ed|es|er|ing))$")
SAME_IN_BOTH = {"size", "sized", "sizes", "resize", "prize", "prized", "seize", "seized", "oversized"}


@cache
def dictionary():
    """Words that are right, and words that are refused."""
    from spellchecker import SpellChecker

    lines = (DOCS / "spelling.txt").read_text(encoding="utf-8").split("\n")
    own = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    refused = {word[1:].lower() for word in own if word.startswith("!")}
    right = {word.lower() for word in own if not word.startswith("!")}
    known = SpellChecker(language="en", distance=1).word_frequency
    return known, right, refused


def american(word):
    return bool(ENDINGS.search(word)) and word not in SAME_IN_BOTH


def is_right(word):
    """Whether a word, of a sentence or a heading, is British English or one of ours."""
    known, right, refused = dictionary()
    plain = word.replace("’", "'").lower()
    stems = [plain, plain.removesuffix("'s")]
    if any(stem in right for stem in stems):
        return True
    if any(stem in refused or american(stem) for stem in stems):
        return False
    return len(plain) < 3 or any(stem in known for stem in stems)


def prose(text):
    """The text with everything that is not prose blanked, lines kept."""
    for pattern in NOT_PROSE:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def mistakes(text):
    """Line and word of everything that is not in the dictionary."""
    return [
        (number, word)
        for number, line in enumerate(prose(text).split("\n"), 1)
        for word in WORD.findall(line)
        if not is_right(word)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_spelling(page):
    wrong = mistakes(page.read_text(encoding="utf-8"))
    told = "\n".join(f"{page.name}:{number}: {word}" for number, word in wrong)
    assert not wrong, f"{told}\nCorrect it, or add a name or term of ours to docs/spelling.txt."


def test_spelling_of_the_statements():
    """The words of ids.toml, which the generated pages show."""
    with (DOCS / "ids.toml").open("rb") as stream:
        tables = tomllib.load(stream)
    wrong = [
        (name, word)
        for name, table in tables.items()
        for field in ("statement", "hypotheses", "twin", "settings", "outcome")
        for _, word in mistakes(table.get(field, "") if isinstance(table.get(field, ""), str) else "")
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A representaton of rank 2.", ["representaton"]),
        ("The netwrok is deep, and teh rank low.", ["netwrok", "teh"]),
        ("We recieve two seperate layers", ["recieve", "seperate"]),
        ("a color that is normalized by the center", ["color", "normalized", "center"]),
        ("- a list\n  whith a mistake", ["whith"]),
        ("| a table | of mispelt words |", ["mispelt"]),
        ("[a linc](spelling.md)", ["linc"]),
        ("# A headding", ["headding"]),
    ],
)
def test_planted_mistakes_are_found(text, found):
    assert [word for _, word in mistakes(text)] == found


@pytest.mark.parametrize(
    "text",
    [
        "a colour that is normalised, and the network’s behaviour",
        "`netwrok` and ``teh`` and $recieve + x$",
        "```python\nseperate = teh\n```",
        "$$\nrecieve\n$$\nthe end",
        "see [the page](whith.md) or https://example.org/teh",
        "<!-- netwrok -->",
    ],
)
def test_code_formulas_and_addresses_are_not_prose(text):
    assert not mistakes(text)


def test_the_list_is_sorted_and_has_nothing_that_is_known_anyway():
    lines = [
        line for line in (DOCS / "spelling.txt").read_text(encoding="utf-8").split("\n") if line[:1] not in ("#", "")
    ]
    assert lines == sorted(set(lines), key=lambda word: (word.lower(), word))
    known, _, _ = dictionary()
    superfluous = [word for word in lines if not word.startswith("!") and word.lower() in known and not american(word)]
    assert not superfluous
