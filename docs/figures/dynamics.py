"""The figure of the tutorial "Hidden variables of a dynamical system": ``python docs/figures/dynamics.py``.

Runs the tutorial's own code as far as its picture, in half a minute, and writes ``dynamics.png`` here.
"""

import re
from pathlib import Path

from isthmus.files import write_atomic
from isthmus.plotting.style import render

HERE = Path(__file__).parent


def main():
    """Run the blocks before the picture, draw."""
    page = (HERE.parent / "tutorials" / "dynamics.md").read_text(encoding="utf-8").split("![")[0]
    names = {"__name__": "tutorial"}
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        # The reader's copy of the picture stays with the reader.
        exec(re.sub(r".*savefig.*\n", "", code), names)
    figure = names["turned"].plot()
    figure.set_dpi(100)
    write_atomic(HERE / "dynamics.png", render(figure))


if __name__ == "__main__":
    main()
