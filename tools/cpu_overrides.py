"""Prints the overrides that docs/guides/getting-started.md tells users of the CPU build to give to uv."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "getting-started.md"
_FILE = re.compile(r"cat >overrides\.txt <<'END'\n(.*?)\nEND\n", re.DOTALL)


def documented_overrides() -> list[str]:
    """Return the requirements, one for each line of the guide's file. Raises ValueError without one."""
    found = _FILE.search(GUIDE.read_text(encoding="utf-8"))
    if not found:
        raise ValueError(f"{GUIDE} does not write an overrides.txt")
    return found[1].splitlines()


if __name__ == "__main__":
    print("\n".join(documented_overrides()))
