"""Overviews of what is kept: the gallery, what differs, ranks that were not decided, the five documents."""

import json

from docutils import nodes
from generated import Generated, badge, link, row, table, to_document
from pending import DOCS, load_ids
from records import NOT_RUN, PAPERS, claim_examples, errata_of, figures, figures_of, number
from unicode_math import formula


class Gallery(Generated):
    def made(self):
        grid = nodes.container("", classes=["gallery"])
        for one in figures().values():
            card = nodes.container("", classes=["card"])
            to_paper = link(one.id, self.docname, self.builder, one.home, one.id.lower())
            if one.image:
                picture = nodes.reference("", "", refuri=to_paper["refuri"], internal=True)
                picture += nodes.image(uri=one.image, alt=f"{one.id}: {one.title}")
                card += nodes.paragraph("", "", picture, classes=["card-picture"])
            else:
                card += nodes.paragraph("", NOT_RUN, classes=["card-picture", "card-empty"])
            good = sum(outcome.status == "agrees" for outcome in one.statements)
            told = nodes.Text(f" {good} of {len(one.statements)} statements agree" if one.statements else "")
            card += nodes.paragraph("", "", nodes.strong("", "", to_paper), nodes.Text(" "), badge(one.status), told)
            card += nodes.paragraph("", one.title)
            more = [to_document(f"note {note.removeprefix('notes/')}", note) for note in one.notes]
            spaced = [node for each in more for node in (nodes.Text(" · "), each)]
            card += nodes.paragraph("", ", ".join(one.papers), *spaced, classes=["id-detail"])
            grid += card
        return [grid]


class Differing(Generated):
    """Every statement that does not agree, with its reason."""

    def made(self):
        listed = nodes.bullet_list()
        for one in figures().values():
            wrong = [outcome for outcome in one.statements if outcome.status != "agrees"]
            if not wrong and one.status != NOT_RUN:
                continue
            name = link(one.id, self.docname, self.builder, one.home, one.id.lower())
            item = nodes.list_item("", nodes.paragraph("", "", name, nodes.Text(" "), badge(one.status)))
            inner = nodes.bullet_list()
            for outcome in wrong:
                values = f": {number(outcome.value)}, compared with {number(outcome.expected)}"
                told = [*formula(outcome.name), nodes.Text(values)]
                told += formula(f"; {outcome.reason}" if outcome.reason else "")
                inner += nodes.list_item("", nodes.paragraph("", "", *told, nodes.Text(" "), badge(outcome.status)))
            if wrong:
                item += inner
            listed += item
        return [listed]


class CountsOfFigures(Generated):
    """How many figures agree, are undetermined, differ, fail, are not run yet; how many of all statements agree."""

    def made(self):
        states = [one.status for one in figures().values()]
        words = {"agrees": "agree", "undetermined": "undetermined", "differs": "differ", "fails": "fail"}
        words[NOT_RUN] = NOT_RUN
        told = [f"{states.count(state)} {word}" for state, word in words.items() if state in states]
        every = [outcome.status for one in figures().values() for outcome in one.statements]
        counted = f"Of their {len(every)} statements {every.count('agrees')} agree."
        return [nodes.paragraph("", f"{len(states)} figures: {', '.join(told)}. {counted}")]


class UndeterminedRanks(Generated):
    """Problems of the benchmark of known ranks that were not decided, or decided wrongly."""

    def made(self):
        kept = json.loads((DOCS.parent / "benchmarks/results/rank_table.json").read_text(encoding="utf-8"))
        rows = []
        for one in kept["rows"]:
            wrong = one["verdict"] == "determined" and one["rank"] != one["true_rank"]
            if not one["true_rank"] or not (wrong or one["verdict"] == "undetermined"):
                continue
            where = f"{one['problem']}, noise {one['noise']:g}, seed {one['seed']}"
            rows.append(row(where, str(one["true_rank"]), f"{one['rank']}, {one['verdict']}", one["reasons"][0]))
        return [table(("problem", "rank", "found", "first reason"), (24, 8, 18, 50), rows)]


class PapersTable(Generated):
    """The five documents: claims, errata and figures of each, counted."""

    def made(self):
        ids, examples, rows = load_ids(), claim_examples(), []
        for paper in PAPERS:
            claims = [name for name, one in ids.items() if one["kind"] == "claim" and paper in one["papers"]]
            held = sum(examples.get(name, ("", "", ""))[1] == "holds" for name in claims)
            errata = sum(line.startswith("|") for line in errata_of(paper).splitlines()) - 2
            shown = figures_of(paper)
            agree = sum(one.status == "agrees" for one in shown)
            page = to_document(paper, f"papers/{paper}")
            said = f"{held} of {len(claims)} hold on their samples" if claims else "–"
            rows.append(row(page, said, str(errata), f"{len(shown)}, of which {agree} agree in every number"))
        return [table(("document", "claims", "errata", "figures"), (20, 34, 12, 34), rows)]


def setup(app):
    app.add_directive("gallery", Gallery)
    app.add_directive("differing", Differing)
    app.add_directive("counts-of-figures", CountsOfFigures)
    app.add_directive("undetermined-ranks", UndeterminedRanks)
    app.add_directive("papers-table", PapersTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
