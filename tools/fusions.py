"""Write the names of the fusions where Python reads them; `make baseline` calls it.

The names are those that the check of knowledge_settings in core/09_fusion.sql has. TypeScript has
them in contract.ts, which tools/contract.py makes from Python's.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SQL = ROOT / "supabase" / "schemas" / "core" / "09_fusion.sql"
FILE = ROOT / "backend" / "src" / "second_brain" / "services" / "fusions.py"


def text(sql: str) -> str:
    """Return the module for the SQL."""
    found = re.search(r"check \(fusion in \(([^)]*)\)\)", sql)
    if found is None:
        raise ValueError("09_fusion.sql has no check of the names")
    names = ", ".join(f'"{name}"' for name in re.findall(r"'(\w+)'", found[1]))
    return (
        '"""The fusions of core/09_fusion.sql. Written by tools/fusions.py: make baseline."""\n\n'
        "from typing import Literal\n\n"
        f"Fusion = Literal[{names}]\n"
        '"""How both legs are fused; a search that names none uses that stored for the corpus, '
        'else\n`rrf`."""\n'
    )


def main() -> None:
    """Write the module."""
    FILE.write_text(text(SQL.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
