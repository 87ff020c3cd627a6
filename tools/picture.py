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
    speed = [
        (f"{name.split(',')[0].split(' (')[0]}, {size}", float(times.split("/")[0]))
        for size, place in (("2,600", 1), ("20,000", 2))
        for name, times in ((row[0], row[place]) for row in rows("operate.md", "system"))
    ]
    drawn.append(
        _text(_HALF + 16, 24, "CPU ms of a question, by chunks", more=' font-weight="600"')
    )
    longest, step = max(found for _, found in speed), _LINE * 0.75
    for place, (name, found) in enumerate(speed):
        top = _TOP - 4 + step * place + 12 * (place // (len(speed) // 2))
        ours = name.startswith("second-brain")
        drawn += _bar(_HALF, top, name, found / longest, f"{found:.1f}", ours)
    height = _TOP + max(_LINE * len(quality), step * len(speed) + 12) + 8
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
