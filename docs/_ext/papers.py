"""The pages of the papers: claims, errata and figures of each.

In a page, ``<!-- errata: rank2023 -->`` becomes the section of errata.md and ``<!-- figures: rank2023 -->`` a section
for each figure; the directives ``claims-of`` and ``figure-result`` fill in the rest.
"""

import re

from docutils import nodes
from generated import Generated, badge, link, row, table, to_document
from ids import labelled
from pending import DOCS, load_ids, providers
from records import NOT_RUN, claim_examples, duration, errata_of, figures, figures_of, number
from unicode_math import formula

MARK = re.compile(r"<!-- (errata|figures): (\w+) -->")
FULL = """### {name}

```{{figure-result}} {name}
```
"""


def expand(app, docname, source):
    """Put generated Markdown in the place of its mark, before anything is parsed: headings stay headings."""

    def written(match):
        kind, paper = match.groups()
        if kind == "errata":
            app.env.note_dependency(str(DOCS / "errata.md"))
            return errata_of(paper)
        mine = [one for one in figures_of(paper) if one.papers[0] == paper]
        others = [one for one in figures_of(paper) if one.papers[0] != paper]
        lines = [FULL.format(name=one.id) for one in mine]
        if others:
            names = ", ".join(f"[{one.id}]({one.papers[0]}.md#{one.id.lower()}) ({one.title})" for one in others)
            lines.append(f"### Shown elsewhere\n\nAlso of this document: {names}.\n")
        return "\n".join(lines)

    if MARK.search(source[0]):
        app.env.note_reread()
        source[0] = MARK.sub(written, source[0])


class ClaimsOf(Generated):
    required_arguments, optional_arguments = 1, 0

    def made(self):
        from isthmus.claims import CLAIMS

        paper, rows = self.arguments[0], []
        functions, examples = providers(), claim_examples()
        for name, one in load_ids().items():
            if one["kind"] != "claim" or paper not in one["papers"]:
                continue
            page, status, sides = examples.get(name, (None, NOT_RUN, ""))
            shown = link(name, self.docname, self.builder, f"claims/{page}", name.lower()) if page else nodes.Text(name)
            first = nodes.paragraph("", "", nodes.strong("", "", shown))
            where = nodes.paragraph("", one["where"], classes=["id-detail"])
            said = CLAIMS[name].statement if name in CLAIMS else one["statement"]
            names = functions.get(name, [])
            code = [nodes.literal("", function.removeprefix("isthmus.claims.")) for function in names[:1]]
            statement = [
                nodes.paragraph("", "", *formula(f"{said.rstrip('.')}.")),
                labelled("Evaluated by", *(code or [nodes.emphasis("", "not yet")])),
            ]
            verdict = [nodes.paragraph("", "", badge(status))]
            if sides:
                verdict.append(nodes.paragraph("", "", nodes.literal("", sides), classes=["id-detail"]))
            rows.append(row([first, where], statement, verdict))
        if not rows:
            return [nodes.paragraph("", "No claim of this document stands by itself; those of the papers cover it.")]
        return [table(("claim", "statement", "on its sample"), (18, 56, 26), rows, "claims-table")]


class FigureResult(Generated):
    required_arguments, optional_arguments = 1, 0

    def made(self):
        one = figures()[self.arguments[0]]
        lead = nodes.paragraph("", "", badge(one.status), nodes.Text(" "), nodes.strong("", f"{one.title}."))
        said = nodes.container(
            "", nodes.paragraph("", "", nodes.strong("", f"The paper ({one.where})")), classes=["beside-half"]
        )
        for label, text in (("Shows", one.statement), ("Settings", one.settings), ("Outcome", one.outcome)):
            if text:
                said += labelled(label, *formula(text))
        ours = nodes.container("", nodes.paragraph("", "", nodes.strong("", "Our run")), classes=["beside-half"])
        ours += self.told(one)
        parts = [lead, nodes.container("", said, ours, classes=["beside"])]
        if one.image:
            picture = nodes.image(uri=one.image, alt=f"{one.id}: {one.title}", classes=["result-picture"])
            parts.append(picture)
        if one.statements:
            parts.append(self.numbers("statement", one.statements))
        if one.conditions:
            parts.append(self.numbers("condition, of ours", one.conditions))
        return parts

    def told(self, one):
        """Command, time, deviations from the paper's settings, and the note."""
        parts: list[nodes.Node] = [nodes.literal_block(one.command, one.command, language="sh")]
        if one.seconds is None:
            parts.append(nodes.paragraph("", f"Not run yet; about {duration(one.usual_seconds)} on two cores."))
        else:
            shared = " (the training of another figure was at hand)" if one.seconds < one.usual_seconds / 20 else ""
            usual = f"; a fresh run about {duration(one.usual_seconds)} on two cores" if shared else ""
            parts.append(nodes.paragraph("", f"Took {duration(one.seconds)}{shared}{usual}."))
        for name, value, default, who in one.changed:
            whose = {"paper": "the paper's", "our choice": "our default"}.get(who)
            rest = f"in place of {whose} {default}" if whose else f"({who})"
            parts.append(nodes.paragraph("", "", nodes.literal("", f"{name}={value}"), nodes.Text(f" {rest}.")))
        if one.notes:
            parts.append(nodes.paragraph("", "", nodes.Text("More: "), *self.notes(one), nodes.Text(".")))
        return parts

    def notes(self, one):
        found = []
        for note in one.notes:
            found += [nodes.Text(", " if found else ""), to_document(f"note {note.removeprefix('notes/')}", note)]
        return found

    def numbers(self, heading, outcomes):
        rows = []
        for outcome in outcomes:
            what = [nodes.paragraph("", "", *formula(outcome.name))]
            if outcome.quote:
                what.append(labelled("The paper", *formula(f"“{outcome.quote}” ({outcome.where})")))
            if outcome.reason:
                label = "Detail" if outcome.status in ("agrees", "met") else "Reason"
                what.append(labelled(label, *formula(outcome.reason)))
            rows.append(row(what, number(outcome.value), number(outcome.expected), badge(outcome.status)))
        return table((heading, "ours", "compared with", ""), (58, 14, 16, 12), rows, "outcomes-table")


def setup(app):
    app.connect("source-read", expand)
    app.add_directive("claims-of", ClaimsOf)
    app.add_directive("figure-result", FigureResult)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
