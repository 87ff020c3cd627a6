"""The page Settings: the stored fusion and weights of each collection, and the synonyms.

A form is first tried in a transaction that is rolled back, which finds what the database refuses.
Then a page says what would change, and its button changes it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from second_brain.errors import InvalidInputError, translate
from second_brain.evaluation import tuning
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import Database
from second_brain.workbench import synonyms
from second_brain.workbench.connections import only_reads
from second_brain.workbench.frame import (
    WEIGHTS,
    Page,
    link,
    number,
    render,
    submitted,
    workbench_of,
    writer_of,
)
from second_brain.workbench.question import FUSIONS
from second_brain.workbench.synonyms import Synonym

_Form: TypeAlias = ImmutableMultiDict[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """What a form changes, as a sentence and as work on the database."""

    sentence: str
    apply: Callable[[Database], object]


def show(request: Request) -> Response:
    """Show what is stored, and the forms if the connection may write."""
    missing = found = None
    with workbench_of(request).connections.reading() as database:
        is_read_only = only_reads(database)
        settings = writer_of(database).settings()
        try:
            with database.connection.transaction():
                found = synonyms.listed(database)
        except psycopg.Error as error:
            missing = translate(error)
    return render(
        request,
        "settings.html",
        {
            "is_read_only": is_read_only,
            "settings": settings,
            "found": found,
            "missing": missing,
            "fusions": FUSIONS,
            "is_changed": "changed" in request.query_params,
        },
        page="settings",
    )


async def change(request: Request) -> Response:
    """Change what a form says, if it was confirmed; else ask for that."""
    form = await submitted(request)
    name = form.get("change", "")
    if name not in _CHANGES:
        raise InvalidInputError(f"change must be one of {', '.join(_CHANGES)}, not {name[:100]!r}")
    wanted = _CHANGES[name](form)
    is_confirmed = bool(form.get("confirmed"))

    def work() -> Response:
        with (
            workbench_of(request).connections.writing() as database,
            database.connection.transaction(force_rollback=not is_confirmed),
        ):
            wanted.apply(database)
        if is_confirmed:
            return RedirectResponse(link("/settings", changed="1"), 303)
        context = {"sentence": wanted.sentence, "fields": form.items()}
        return render(request, "settings_confirm.html", context, page="settings")

    return await run_in_threadpool(work)


def _store_settings(form: _Form) -> Change:
    collection = form.get("collection", "").strip()
    vector, text = (number(name, form.get(name, "") or "1") for name in WEIGHTS)
    fusion = form.get("fusion") or None
    wanted = CorpusSettings(fusion=fusion, vector_weight=vector, text_weight=text)
    return Change(
        f"This stores for {_where(collection)}: fusion {fusion or 'of the caller'}, vector weight "
        f"{vector:g}, text weight {text:g}. Every search that names no fusion changes at once.",
        lambda database: tuning.store(writer_of(database), collection, wanted),
    )


def _remove_settings(form: _Form) -> Change:
    collection = form.get("collection", "").strip()
    return Change(
        f"This removes what is stored for {_where(collection)}: fusion, weights, fields, and the "
        "name of the embedding model. Every search that names no fusion changes at once.",
        lambda database: writer_of(database).reset_settings(collection),
    )


def _store_synonym(form: _Form) -> Change:
    wanted = _synonym(form)
    also = ", and the reverse" if wanted.is_two_way else ""
    return Change(
        f"A search for {wanted.term} then also finds {wanted.synonym}{also}, with "
        f"{wanted.weight:g} of its weight, in {_searches(wanted.collection)}.",
        lambda database: synonyms.store(database, wanted),
    )


def _remove_synonym(form: _Form) -> Change:
    wanted = _synonym(form)
    return Change(
        f"A search for {wanted.term} then no longer finds {wanted.synonym} by this synonym, in "
        f"{_searches(wanted.collection)}.",
        lambda database: synonyms.remove(database, wanted),
    )


_CHANGES: Mapping[str, Callable[[_Form], Change]] = {
    "store_settings": _store_settings,
    "remove_settings": _remove_settings,
    "store_synonym": _store_synonym,
    "remove_synonym": _remove_synonym,
}


def _synonym(form: _Form) -> Synonym:
    collection, term, synonym = (
        form.get(name, "").strip() for name in ("collection", "term", "synonym")
    )
    weight = number("weight", form.get("weight", "") or "0.8")
    return Synonym(collection, term, synonym, bool(form.get("is_two_way")), weight)


def _where(collection: str) -> str:
    name = f"the collection {collection}"
    return name if collection else "all collections without settings of their own"


def _searches(collection: str) -> str:
    return f"searches that name the collection {collection}" if collection else "all searches"


PAGE = Page(
    "settings",
    "Settings",
    "/settings",
    [Route("/settings", show), Route("/settings", change, methods=["POST"])],
)
