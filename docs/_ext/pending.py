"""Which ids of ``docs/ids.toml`` have a function, and which are pending.

``python docs/_ext/pending.py`` shortens ``docs/ids_pending.txt`` after a function has landed. It refuses to
lengthen the list unless told ``--grow``: an id that loses its function should be noticed.
"""

import importlib
import pkgutil
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PENDING = DOCS / "ids_pending.txt"


def load_ids():
    """The tables of ids.toml, with ``papers`` as a list and white space in texts collapsed."""
    with (DOCS / "ids.toml").open("rb") as stream:
        tables = tomllib.load(stream)
    for table in tables.values():
        table["papers"] = [table["paper"]] if isinstance(table["paper"], str) else list(table["paper"])
        for field in ("where", "statement", "hypotheses", "twin", "settings", "outcome"):
            if field in table:
                table[field] = " ".join(table[field].split())
    return tables


def import_everything():
    """Import every submodule of isthmus, so that all citations are recorded."""
    import isthmus

    def reraise(name):
        raise  # noqa: PLE0704  walk_packages calls this inside its except block

    for module in pkgutil.walk_packages(isthmus.__path__, "isthmus.", onerror=reraise):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("isthmus"):
                raise  # a missing optional dependency is fine, a missing part of ourselves is not


def citations():
    """All citations made by the package."""
    import_everything()
    from isthmus._cite import CITATIONS

    return [citation for citation in CITATIONS if citation.function.startswith("isthmus.")]


def providers():
    """Functions by the ids they provide, in import order and without repetition."""
    found = {}
    for citation in citations():
        for name in citation.ids:
            functions = found.setdefault(name, [])
            if citation.function not in functions:
                functions.append(citation.function)
    return found


def missing():
    """Ids without a function, in the order of ids.toml."""
    provided = providers()
    return [name for name in load_ids() if name not in provided]


def listed():
    """Ids of the committed list."""
    return PENDING.read_text(encoding="utf-8").split()


def main(arguments):
    now = missing()
    grown = sorted(set(now) - set(listed())) if PENDING.exists() else []
    if grown and "--grow" not in arguments:
        print("These ids lost their function:", ", ".join(grown), file=sys.stderr)
        print("Restore the @cites, or run again with --grow.", file=sys.stderr)
        return 1
    PENDING.write_text("".join(f"{name}\n" for name in now), encoding="utf-8")
    print(f"{len(load_ids()) - len(now)} ids have a function, {len(now)} are pending.")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent / "src"))
    sys.exit(main(sys.argv[1:]))
