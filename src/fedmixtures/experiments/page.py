"""Put the tables and figures of a run into a page, between its marks.

``python -m fedmixtures.experiments.page docs/reproduction.md results`` replaces everything between
``<!-- results: NAME -->`` and ``<!-- end -->`` by what the run wrote, and leaves the rest alone.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

MARKED = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refresh(page: Path, results: Path) -> list[str]:
    """Bring the page up to date; returns the names of the experiments in it."""
    found = []
    prefix = os.path.relpath(results, page.parent)

    def section(match: re.Match) -> str:
        name = match["name"]
        table = results / name / "table.md"
        if not table.exists():
            return f"{match[1]}Not run yet: `fedmixtures experiment {name}`.\n{match[3]}"
        found.append(name)
        text = table.read_text("utf-8").strip()
        # The page has a heading of its own for every experiment.
        text = re.sub(r"^## .*\n+", "", text)
        text = text.replace("](figure.png)", f"]({prefix}/{name}/figure.png)")
        return f"{match[1]}{text}\n{match[3]}"

    page.write_text(MARKED.sub(section, page.read_text("utf-8")), "utf-8")
    return found


if __name__ == "__main__":
    print(*refresh(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
