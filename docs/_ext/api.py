"""The reference: one automodule for each public module, a table of the names, docstrings made safe for reST.

Docstrings write |A|_+ and ‖A‖_* as plain text, which reStructuredText would read as markup.
"""

import importlib.util
import inspect
import re
from pathlib import Path

import isthmus

NAMES = "<!-- names -->"
LISTING = re.compile(r"<!-- modules: ([\w ]+) -->")
LITERAL = re.compile(r"(``.+?``|:\w+:`[^`]+`|`[^`]+`_?)")
KEPT = {}
SECTION = """## {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
```
"""
SEVERAL = re.compile(r"(:(?:ivar|vartype) )((?:\w+, )+\w+)(?=:)")
EMPHASIS = re.compile(r"(\*\*?)(?=\S)([^*\n]*[^*\s])\1(?!\w)")


def list_modules(app, docname, source):
    def expand(match):
        names = [f"isthmus.{name}" for name in match[1].split()]
        present = [name for name in names if importlib.util.find_spec(name) is not None]
        for name in present:
            module = importlib.import_module(name)
            for public in getattr(module, "__all__", ()):
                # Names that load on first use are not in dir(module), where autodoc looks for them.
                vars(module).setdefault(public, getattr(module, public))
        return "\n".join(SECTION.format(name=name) for name in present)

    if docname.startswith("api"):
        source[0] = LISTING.sub(expand, source[0]).replace(NAMES, table_of_names(app))


def summary(thing):
    """First paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").strip().split("\n\n")[0].split())


def table_of_names(app):
    """Markdown: the public names of ``isthmus`` by the page of the reference that documents them, each with a line."""
    lines, seen = [], set()
    for path in sorted((Path(app.srcdir) / "api").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        modules = [f"isthmus.{name}" for match in LISTING.finditer(text) for name in match[1].split()]
        rows = []
        for name in isthmus.__all__:
            thing = getattr(isthmus, name)
            if inspect.ismodule(thing) or name.startswith("_") or name in seen:
                continue
            home = isthmus._NAMES.get(name, "")
            if home in modules or (not home and f":: {name}\n" in text):
                seen.add(name)
                target = f"{home or 'isthmus'}.{name}"
                rows.append((name, target, thing))
        lines += [f"## [{text.split(chr(10))[0].removeprefix('# ')}](api/{path.name})", ""]
        if rows:
            lines += ["```{eval-rst}", ".. list-table::", "   :widths: 30 70", ""]
            for name, target, thing in rows:
                role = "class" if inspect.isclass(thing) else "func"
                lines += [f"   * - :py:{role}:`{name} <{target}>`", f"     - {escape_plain(summary(thing))}"]
            lines += ["```", ""]
        lines += ["Modules: " + ", ".join(f"`{name}`" for name in modules if importlib.util.find_spec(name)) + ".", ""]
    return "\n".join(lines)


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
    for index, line in enumerate(lines):
        if several := SEVERAL.match(line):
            # ":ivar a, b:" would be read as b of the type "a,".
            lines[index] = several[1] + several[2].replace(", ", ",") + line[several.end() :]


def skip_generated(app, what, name, obj, skip, options):
    """scikit-learn makes ``set_fit_request`` and its like, whose text refers to a glossary that is not here."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app):
    app.connect("autodoc-skip-member", skip_generated)
    app.connect("source-read", list_modules)
    app.connect("autodoc-process-docstring", clean_docstring, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", restore_docstring, priority=900)  # after it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
