"""Pieces of generated pages: badges, links, tables, and the directive that all of them derive from."""

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes


def badge(status):
    """A status such as ``agrees``, ``met``, ``holds`` or "not run yet", coloured and readable without colour."""
    return nodes.inline("", status, classes=["badge", f"badge-{status.replace(' ', '-')}"])


def link(text, docname, builder, target, anchor=""):
    """A link to a document, at an anchor, from ``docname``."""
    uri = builder.get_relative_uri(docname, target) + (f"#{anchor}" if anchor else "")
    return nodes.reference("", text, refuri=uri, internal=True)


def to_document(text, docname):
    """A link that Sphinx resolves to a document by its title, and refuses if there is none."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", text),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{docname}",
        refexplicit=True,
        refwarn=True,
    )


def row(*cells):
    """A row of a table; a cell is text, a node or a list of nodes."""
    entries = []
    for cell in cells:
        content = cell if isinstance(cell, list) else [nodes.Text(cell) if isinstance(cell, str) else cell]
        blocks = content and isinstance(content[0], nodes.paragraph)
        entries.append(nodes.entry("", *(content if blocks else [nodes.paragraph("", "", *content)])))
    return nodes.row("", *entries)


def table(titles, widths, rows, *classes):
    """A table that scrolls within the page where it is too wide."""
    head = nodes.thead("", row(*titles))
    body = nodes.tbody("", *rows)
    columns = [nodes.colspec(colwidth=width) for width in widths]
    group = nodes.tgroup("", *columns, head, body, cols=len(widths))
    return nodes.table("", group, classes=["generated", *classes])


class Generated(Directive):
    """A directive whose content comes from the repository, hence read anew at every build."""

    optional_arguments = 1

    def run(self):
        self.environment = self.state.document.settings.env
        self.builder = self.environment.app.builder
        self.docname = self.environment.docname
        self.environment.note_reread()
        return self.made()

    def made(self) -> list:
        """The nodes; each directive has its own."""
        raise NotImplementedError
