"""Prints supabase/functions/_shared/contract.ts: what TypeScript takes from Python's lists.

These are the arguments of a search, the columns of filters, and which error has which code, class
and remedy; and of database.types.ts, which Supabase's CLI writes, the types that the package needs.
A test of both files formats them and compares.
"""

import json
import re
from itertools import groupby

from second_brain import errors
from second_brain.errors import SecondBrainError
from second_brain.filters import COLUMNS
from second_brain.services.arguments import ARGUMENTS
from second_brain.services.functions import FUNCTIONS
from second_brain.services.results import OFF_SUBJECT
from second_brain.sql_modules import module_of

HEADER = "// Written by tools/contract.py: UPDATE_GOLDEN=1 pytest tests/supabase/test_frontend.py"

_SEARCHES = (
    "hybrid_search_knowledge_chunks",
    "search_my_knowledge_chunks",
    "search_public_knowledge_chunks",
)

_WITHOUT_CODE = (
    errors.DimensionMismatchError,
    errors.ModuleMissingError,
    errors.ClientTimeoutError,
)


def error_classes() -> list[type[SecondBrainError]]:
    """Return the classes of errors that an answer of the database can have."""
    found = {*errors._CLASSES.values(), *errors._STATE_CLASSES.values(), *_WITHOUT_CODE}
    found |= {one for kind in found for one in kind.__mro__ if issubclass(one, SecondBrainError)}
    return sorted(found, key=lambda one: one.kind)


def _part(types: str, *path: str) -> str:
    """Return a type of an object type in the CLI's file, by the names that lead to it."""
    for name in path:
        found = re.search(rf'^( *)"?{name}"?: (.*\n(?:\1[ }}].*\n)*)', types, re.MULTILINE)
        if found is None:
            raise ValueError(f"database.types.ts has no {name}")
        types = found[2]
    return types.rstrip().removesuffix(";")


def _arguments(name: str) -> str:
    """Return the type of the arguments of a function that searches."""
    left_out = [
        one for one in FUNCTIONS[_SEARCHES[0]].arguments if one not in FUNCTIONS[name].arguments
    ]
    names = " | ".join(map(json.dumps, left_out))
    return f"Omit<SearchArguments, {names}>" if names else "SearchArguments"


def text(types: str) -> str:
    """Return the file, not formatted; `types` is the text of database.types.ts."""
    codes = sorted(
        ((error.kind, code) for code, error in (errors._CLASSES | errors._STATE_CLASSES).items())
    )
    arguments = {
        one.sql_name: {"type": one.sql_type, "help": one.help} for one in ARGUMENTS.values()
    }
    called = re.compile("facet_|explain_(my_|public_)?empty_")
    modules = {name: module_of(name) for name in sorted(FUNCTIONS) if called.match(name)}
    kinds = [one.kind for one in error_classes()]
    lines = "\n".join(
        (
            HEADER,
            "",
            *re.findall(r"^export type Json = .*?;$", types, re.M | re.DOTALL),
            "",
            "/** The arguments of a search. */",
            "export type SearchArguments = Omit<"
            f"{_part(types, 'Functions', _SEARCHES[0], 'Args')}, 'ranked_lists'>;",
            "",
            "/** The functions that search, with what each takes. */",
            "export type Searches = {",
            *(f"{name}: {_arguments(name)};" for name in _SEARCHES),
            "};",
            "",
            "/** What `upsert_knowledge_document` did. */",
            "export type Upserted = "
            f"{_part(types, 'Functions', 'upsert_knowledge_document', 'Returns')}[number];",
            "",
            "/** The columns of a hit. */",
            f"export type HitColumns = {_part(types, 'CompositeTypes', 'knowledge_search_hit')};",
            "",
            "/** The columns of a document, as they can be written. */",
            "export type DocumentColumns = "
            f"{_part(types, 'Tables', 'knowledge_documents', 'Insert')};",
            "",
            "export interface Argument { type: string; help: string }",
            "",
            "/** The arguments of a search: their SQL types and their meaning. */",
            "export const ARGUMENTS: Record<keyof SearchArguments, Argument> = "
            f"{json.dumps(arguments)};",
            "",
            "/** The columns that a condition of a filter can name. */",
            f"export const FILTER_COLUMNS = {json.dumps(COLUMNS)} as const;",
            "",
            "/** Below this `answer_confidence`, the question may be off the subject. */",
            f"export const OFF_SUBJECT = {OFF_SUBJECT};",
            "",
            f"export type ErrorKind = {' | '.join(map(json.dumps, kinds))};",
            "",
            "/** What to do after an error of a kind. */",
            "export const REMEDIES: Record<ErrorKind, string> = "
            f"{json.dumps({one.kind: one.default_remedy for one in error_classes()})};",
            "",
            "/** What to do after an error with a code, where that is more than its kind says. */",
            "export const REMEDIES_OF_CODES: Record<string, string> = "
            f"{json.dumps(errors._REMEDIES)};",
            "",
            "/** SQLSTATEs (whole, or two characters of a class), PostgREST's codes, statuses. */",
            "export const CODES: Partial<Record<ErrorKind, string>> = "
            + json.dumps(
                {
                    kind: " ".join(code for _, code in group)
                    for kind, group in groupby(codes, key=lambda pair: pair[0])
                }
            )
            + ";",
            "",
            "/** The module of each function of the package that is not of core. */",
            f"export const MODULES: Record<string, string> = {json.dumps(modules)};",
            "",
        )
    )
    # Names without quotes, which are enough but for codes.
    return re.sub(r'"([a-z]\w*)"(\??: )', r"\1\2", lines)
