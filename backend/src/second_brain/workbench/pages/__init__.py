"""The pages of the workbench, one module each; PAGES is the order of the navigation."""

from second_brain.workbench.frame import Page
from second_brain.workbench.pages import (
    corpus,
    documents,
    judge,
    measure,
    search,
    settings,
    why_not,
)

PAGES: tuple[Page, ...] = (
    search.PAGE,
    why_not.PAGE,
    judge.PAGE,
    measure.PAGE,
    corpus.PAGE,
    documents.PAGE,
    settings.PAGE,
)
