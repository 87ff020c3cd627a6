"""Draw docs/images/figures.svg: quality and speed beside other systems.

`make figures` draws it after it has measured. The numbers are those of two tables in the pages, so
the picture never says anything else; a test compares them.
"""

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "images" / "figures.svg"
_OURS, _THEIRS, _INK, _QUIET = "#0f766e", "#94a3b8", "#0f172a", "#475569"
_WIDTH, _LINE, _TOP = 960, 26, 44
_HALF = _WIDTH // 2
_NAME, _BAR = 250, 170
"""Of each half: where the bars begin, and the length of the longest, in pixels."""


def rows(page: str, first_header: str) -> list[list[str]]:
    """Return the cells of the table in a page whose first column is headed so."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    found = re.search(rf"^\| {first_header} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not found:
        raise ValueError(f"docs/{page} has no table of {first_header}")
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in found[1].splitlines()
    ]


def _text(x: float, y: float, text: str, color: str = _INK, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}"{more}>{escape(text)}</text>'


def _bar(left: float, top: float, name: str, share: float, shown: str, ours: bool) -> list[str]:
    color, length = (_OURS if ours else _THEIRS), _BAR * share
    return [
        _text(left + _NAME - 8, top + 15, name, more=' text-anchor="end"'),
        f'<rect x="{left + _NAME}" y="{top + 3}" width="{length:.1f}" height="17" rx="2" '
        f'fill="{color}"/>',
        _text(left + _NAME + length + 6, top + 15, shown, _QUIET),
    ]


def picture() -> str:
    """Return the picture as SVG."""
    quality = [(name, float(found)) for name, found in rows("ranking.md", "system")]
    drawn = [_text(16, 24, "Quality: mean nDCG@10 of 15 collections", more=' font-weight="600"')]
    best = max(found for _, found in quality)
    for place, (name, found) in enumerate(quality):
        ours = name.startswith("second-brain")
        drawn += _bar(0, _TOP + _LINE * place, name, found / best, f"{found:.3f}", ours)
    drawn.append(
        _text(_HALF + 16, 24, "CPU ms of a question, by chunks", more=' font-weight="600"')
    )
    systems, step, top = rows("operate.md", "system"), _LINE * 0.75, _TOP - 4.0
    for column, size in enumerate(("2,600", "20,000", "200,000"), start=1):
        speed = [float(system[column].split("/")[0]) for system in systems]
        for (name, *_), found in zip(systems, speed, strict=True):
            ours = name.startswith("second-brain")
            label = f"{name.split(',')[0].split(' (')[0]}, {size}"
            drawn += _bar(_HALF, top, label, found / max(speed), f"{found:.1f}", ours)
            top += step
        top += 12
    height = max(_TOP + _LINE * len(quality), top)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
            f'width="{_WIDTH}" height="{height:.0f}" role="img" '
            'aria-label="Quality and speed beside other systems" '
            'font-family="system-ui, sans-serif" font-size="13">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    FILE.write_text(picture(), "utf-8")
