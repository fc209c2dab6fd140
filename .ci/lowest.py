"""The lowest versions that pyproject.toml allows, as constraints for pip: ``python .ci/lowest.py > constraints.txt``.

Of PyTorch the tested version stands in constraints.txt: old builds for processors alone are not kept by all indexes.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent

project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for requirement in (*project["dependencies"], *extras["parquet"], *extras["serve"]):
    name, floor = requirement.split(">=")
    if name != "torch":
        print(f"{name}=={floor}")
torch = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
print(torch[0] if torch else "")
