"""Run every benchmark in this folder, one after the other.

    python benchmarks/run_all.py [--quick]

Each writes ``benchmarks/results/<name>.json`` (in full only: quick runs are a check that they work).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run them; the number that failed is the exit code."""
    quick = "--quick" in sys.argv[1:]
    failed = 0
    for script in sorted(HERE.glob("*.py")):
        # A leading underscore: a part of another.
        if script.name == Path(__file__).name or script.name.startswith("_"):
            continue
        print(f"== {script.stem}", flush=True)
        extra = ["--quick"] if quick else ["--out", str(HERE / "results" / f"{script.stem}.json")]
        failed += subprocess.run([sys.executable, str(script), *extra], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
