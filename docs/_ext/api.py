"""The reference page: one automodule for each public module that exists, and docstrings made safe for reST.

Docstrings write |A|_+ and ‖A‖_* as plain text, which reStructuredText would read as markup.
"""

import importlib.util
import re

LISTING = re.compile(r"<!-- modules: ([\w ]+) -->")
LITERAL = re.compile(r"(``.+?``|:\w+:`[^`]+`|`[^`]+`_?)")
KEPT = {}
SECTION = """## {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
```
"""
EMPHASIS = re.compile(r"(\*\*?)(?=\S)([^*\n]*[^*\s])\1(?!\w)")


def list_modules(app, docname, source):
    def expand(match):
        names = [f"isthmus.{name}" for name in match[1].split()]
        present = [name for name in names if importlib.util.find_spec(name) is not None]
        return "\n".join(SECTION.format(name=name) for name in present)

    if docname == "api":
        source[0] = LISTING.sub(expand, source[0])


def escape_plain(text):
    """Escape bars, stray asterisks and trailing underscores, outside literals, roles and emphasis."""
    pieces = LITERAL.split(text)
    for index in range(0, len(pieces), 2):
        piece = re.sub(r"(\w)_(?=\W|$)", r"\1\\_", pieces[index].replace("|", r"\|"))
        if not EMPHASIS.search(piece):
            piece = piece.replace("*", r"\*")
        if index and re.match(r"\w", piece):
            piece = "\\ " + piece  # ``nn.Module``s: a literal must end at a word boundary
        pieces[index] = piece
    return "".join(pieces)


def clean_docstring(app, what, name, obj, options, lines):
    in_code = False
    for index, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            in_code = True
        elif not line.strip():
            in_code = False
        if not in_code:
            lines[index] = escape_plain(line)
    if what in ("property", "attribute") and not any(line.strip().startswith("----") for line in lines):
        # Napoleon would read "W_1 … W_L: the parameters" as a type and its description.
        KEPT[name] = lines.copy()


def restore_docstring(app, what, name, obj, options, lines):
    if name in KEPT:
        lines[:] = KEPT.pop(name)


def skip_generated(app, what, name, obj, skip, options):
    """scikit-learn makes ``set_fit_request`` and its like, whose text refers to a glossary that is not here."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app):
    app.connect("autodoc-skip-member", skip_generated)
    app.connect("source-read", list_modules)
    app.connect("autodoc-process-docstring", clean_docstring, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", restore_docstring, priority=900)  # after it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
