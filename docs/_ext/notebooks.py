"""Tutorials as notebooks to download: their Python blocks are its cells, with what they print below them."""

import base64
import json
import re
from pathlib import Path

BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", flags=re.DOTALL)
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")
COMMENT = re.compile(r"<!--.*?-->\n?", flags=re.DOTALL)
FOLDER = "notebooks"


def notebook(page):
    """The notebook (nbformat 4.5) of a page of Markdown, as plain data."""
    text = page.read_text(encoding="utf-8")
    cells, end = [], 0
    for found in BLOCK.finditer(text):
        cells += [_prose(text[end : found.start()], page.parent), _code(found["code"], found["printed"])]
        end = found.end()
    cells.append(_prose(text[end:], page.parent))
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(filter(None, cells))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _lines(text):
    return text.strip("\n").splitlines(keepends=True)


def _prose(text, folder):
    """Pictures go along; links to other pages, which a notebook on its own has not got, keep their words."""
    attached = {}

    def attach(found):
        path = folder / found[2]
        attached[path.name] = {"image/png": base64.b64encode(path.read_bytes()).decode()}
        return f"![{found[1]}](attachment:{path.name})"

    text = LINK.sub(r"\1", PICTURE.sub(attach, COMMENT.sub("", text)))
    if not text.strip():
        return None
    more = {"attachments": attached} if attached else {}
    return {"cell_type": "markdown", "metadata": {}, **more, "source": _lines(text)}


def _code(code, printed):
    outputs = []
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed)})
    more = {"execution_count": None, "metadata": {}, "outputs": outputs}
    return {"cell_type": "code", **more, "source": _lines(code)}


def write_notebooks(app, config):
    """Where Sphinx takes files from that it only copies."""
    extra = Path(app.doctreedir) / "extra"
    (extra / FOLDER).mkdir(parents=True, exist_ok=True)
    for page in sorted((Path(app.srcdir) / "tutorials").glob("*.md")):
        content = json.dumps(notebook(page), ensure_ascii=False, indent=1)
        (extra / FOLDER / f"{page.stem}.ipynb").write_text(content + "\n", encoding="utf-8")
    config.html_extra_path.append(str(extra))


def link_notebook(app, docname, source):
    """A link below the heading of each tutorial."""
    if docname.startswith("tutorials/") and app.builder.format == "html":
        name = docname.removeprefix("tutorials/")
        link = f'<p><a href="../{FOLDER}/{name}.ipynb" download>Download this page as a notebook</a></p>'
        heading, _, rest = source[0].partition("\n")
        source[0] = f"{heading}\n\n{link}\n{rest}"


def setup(app):
    app.connect("config-inited", write_notebooks)
    app.connect("source-read", link_notebook)
    return {"parallel_read_safe": True}
