"""The templates of HTML pages that show figures: the report, and what the workbench has of it."""

from typing import TYPE_CHECKING

from second_brain.extras import needed

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(*packages: str) -> "Environment":
    """Return the templates of this package, and those of the folders `templates` of others."""
    with needed("jinja2", "evaluation"):
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (*packages, __package__)]),
        # Of all templates, whatever their name: corpus text is never HTML.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=_number, count=_count)
    return templates


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _count(value: int) -> str:
    return f"{value:,}"
