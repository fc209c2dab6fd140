"""The directive ``ids``: a table of one kind of id from ids.toml, with the functions that provide each."""

from docutils import nodes
from docutils.parsers.rst import Directive
from pending import DOCS, load_ids, providers
from unicode_math import prose


def labelled(label, *content):
    """A paragraph ``label: content`` below the statement."""
    return nodes.paragraph("", "", nodes.emphasis("", f"{label}: "), *content, classes=["id-detail"])


def left_cell(name, table):
    anchor = nodes.strong("", name, ids=[name.lower()])  # so that ids.html#c-rank-1 is a link
    where = nodes.paragraph("", table["where"], classes=["id-detail"])
    keys = nodes.paragraph("", ", ".join(table["papers"]), classes=["id-detail"])
    details = [where] if all(key in table["where"] for key in table["papers"]) else [keys, where]
    return nodes.entry("", nodes.paragraph("", "", anchor), *details)


def right_cell(table, functions, ids):
    cell = nodes.entry("", nodes.paragraph("", "", *prose(table["statement"], ids)))
    for field in ("hypotheses", "twin", "settings", "outcome"):
        if field in table:
            cell += labelled(field.capitalize(), *prose(table[field], ids))
    if table.get("rate"):
        cell += labelled("Rate", nodes.Text("only a rate or a trend can be tested."))
    names = [nodes.literal("", function) for function in functions] or [nodes.emphasis("", "not yet")]
    listed = [node for name in names for node in (nodes.Text(", "), name)]
    cell += labelled("Provided by", *listed[1:])
    return cell


class IdsTable(Directive):
    required_arguments = 1

    def run(self):
        environment = self.state.document.settings.env
        environment.note_dependency(str(DOCS / "ids.toml"))
        environment.note_reread()  # the functions come from the package, which Sphinx does not watch
        ids = load_ids()
        chosen = {name: table for name, table in ids.items() if table["kind"] == self.arguments[0]}
        if not chosen:
            raise self.error(f"`ids`: no id has the kind {self.arguments[0]!r} in ids.toml.")
        provided = providers()
        body = nodes.tbody()
        for name, table in chosen.items():
            body += nodes.row("", left_cell(name, table), right_cell(table, provided.get(name, []), ids))
        titles = [nodes.entry("", nodes.paragraph("", title)) for title in ("id", "statement")]
        head = nodes.thead("", nodes.row("", *titles))
        group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (22, 78)), head, body, cols=2)
        done = sum(name in provided for name in chosen)
        count = nodes.paragraph("", f"{done} of {len(chosen)} have a function.")
        return [count, nodes.table("", group, classes=["ids-table"])]


def setup(app):
    app.add_directive("ids", IdsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
