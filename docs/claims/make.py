"""The pages of claims, one for each paper: ``python docs/claims/make.py`` evaluates every claim on its sample."""

from pathlib import Path

from isthmus.claims import CLAIMS, verify_samples

HERE = Path(__file__).parent
TITLES = {
    "rank2023": "Implicit bias of large depth networks: a notion of rank",
    "bottleneck2023": "Bottleneck structure in learned features",
    "hamiltonian2024": "Hamiltonian mechanics of feature learning",
    "features2022": "Feature learning: attraction, repulsion and sparsity",
}
START = """# {title}

Every claim of `{paper}` that `isthmus verify` evaluates, with an example: the claim on its own sample, a network that
meets its hypotheses. Where a paper prints something else than what is evaluated, the erratum says so. Made by
`python docs/claims/make.py`.

```sh
isthmus verify --claim '{prefix}*'
isthmus verify net.safetensors --data X.npy --y Y.npy --ridge 0.01 --claim '{prefix}*'
```
"""


def section(one, verdict):
    """One claim in Markdown."""
    source = f"*{one.title[0].upper()}{one.title[1:]}: {one.paper}, {one.where}.*"
    lines = ["", f"## {one.id}", "", f"{one.statement}.", "", source, ""]
    if one.rate:
        lines += ["Only a rate or a trend can be tested.", ""]
    if one.erratum:
        lines += [f"**Erratum.** {one.erratum}", ""]
    lines += ["| hypothesis | in the example | found |", "|---|---|---|"]
    lines += [f"| {cell(h.name)} | {h.status} | {cell(h.found)} |" for h in verdict.hypotheses]
    sides = f"{verdict.lhs:.5g} {verdict.relation} {verdict.rhs:.5g}"
    where = f", at {verdict.where}" if verdict.where else ""
    why = f" ({verdict.reason})" if verdict.reason else ""
    return [*lines, "", f"Example: **{verdict.status}**{why}, `{sides}`, margin {verdict.margin:.2g}{where}."]


def cell(text):
    """Text for a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def main():
    """Evaluate and write."""
    found = verify_samples()
    for paper, title in TITLES.items():
        verdicts = [v for v in found if CLAIMS[v.claim].paper == paper]
        prefix = verdicts[0].claim.rsplit("-", 1)[0] + "-"
        lines = START.format(title=title, paper=paper, prefix=prefix).rstrip().splitlines()
        for verdict in sorted(verdicts, key=lambda v: int(v.claim.rsplit("-", 1)[1])):
            lines += section(CLAIMS[verdict.claim], verdict)
        (HERE / f"{paper}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
