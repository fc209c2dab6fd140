"""Plain Unicode formulas as docutils nodes: ``α_{ℓ-1}``, ``|A|_+`` and ``e^{2/k}`` get their scripts."""

import re
import unicodedata

from docutils import nodes

WORDS = ("BN", "cp", "op", "out", "in")  # subscripts of several letters that are written without braces
ID = re.compile(r"\b[MQACF](?:-[a-z0-9]+)+\b")


def script(text, start):
    """The sub- or superscript beginning at ``start``, in braces or parentheses or bare, and the position after it."""
    if closing := {"{": "}", "(": ")"}.get(text[start]):
        depth = 0
        for end in range(start, len(text)):
            depth += (text[end] == text[start]) - (text[end] == closing)
            if depth == 0:
                return text[start + 1 : end], end + 1
        raise ValueError(f"`unicode_math`: unbalanced braces in {text!r}. Close the brace.")
    word = next((word for word in WORDS if text.startswith(word, start)), text[start])
    end = start + len(word)
    while end < len(text) and (unicodedata.combining(text[end]) or (word.isdigit() and text[end].isdigit())):
        end += 1
    return text[start:end], end


def formula(text):
    """Nodes of ``text``, scripts nested as written."""
    found, plain, position = [], 0, 0
    while position < len(text) - 1:
        if text[position] in "_^" and text[position + 1] != " ":
            inside, end = script(text, position + 1)
            kind = nodes.subscript if text[position] == "_" else nodes.superscript
            found += [nodes.Text(text[plain:position]), kind("", "", *formula(inside))]
            plain = position = end
        else:
            position += 1
    return [*found, nodes.Text(text[plain:])]


def prose(text, ids):
    """Nodes of ``text`` with formulas rendered and known ids linked within the page."""
    found, plain = [], 0
    for match in ID.finditer(text):
        if match[0] in ids:
            found += formula(text[plain : match.start()])
            found.append(nodes.reference("", match[0], refid=match[0].lower(), internal=True))
            plain = match.end()
    return found + formula(text[plain:])
