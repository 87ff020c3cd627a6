"""What TypeScript takes from Python's lists: two files in supabase/functions/_shared.

contract.ts has the arguments of a search, the columns of filters, and which error has which code,
class and remedy; and of database.types.ts, which Supabase's CLI writes, the types that the package
needs. tools.ts has the tools of the MCP server, for the Edge Function mcp. A test formats the files
and compares.
"""

import json
import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from second_brain import errors
from second_brain.errors import SecondBrainError
from second_brain.lists import COLUMNS, TAKES
from second_brain.mcp_server import documents, server
from second_brain.mcp_server import text as mcp_text
from second_brain.mcp_server.searching import HybridSearch, SearchKnowledgeBase
from second_brain.retrieval import plan, tool_arguments
from second_brain.services.arguments import ARGUMENTS, FUSIONS, VIEWER, Argument
from second_brain.services.functions import functions
from second_brain.services.results import OFF_SUBJECT
from second_brain.sql_modules import module_of

HEADER = "// Written by tools/contract.py: UPDATE_GOLDEN=1 pytest tests/supabase/test_frontend.py"

_SEARCHES = (
    "hybrid_search_knowledge_chunks",
    "search_my_knowledge_chunks",
    "search_public_knowledge_chunks",
)

_NOT_THE_CALLERS = ("query_embedding", *VIEWER, "public_only")
_JSON: Mapping[str, Mapping[str, Any]] = {
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "double precision": {"type": "number"},
    "integer": {"type": "integer"},
    "jsonb": {"type": "array", "items": {"type": "object"}},
    "text": {"type": "string"},
    "timestamp with time zone": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
}
"""What JSON Schema says of an SQL type."""

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


def _arguments_of_a_search(types: str) -> str:
    """Return the type of all arguments; ranked lists are not a caller's to give."""
    given = _part(types, "Functions", _SEARCHES[0], "Args")
    return re.sub(r'\n *"ranked_lists"\?: .*', "", given)


def _arguments(name: str) -> str:
    """Return the type of the arguments of a function that searches."""
    left_out = [
        one for one in functions()[_SEARCHES[0]].arguments if one not in functions()[name].arguments
    ]
    names = " | ".join(map(json.dumps, left_out))
    return f"Omit<SearchArguments, {names}>" if names else "SearchArguments"


def _json_schema(argument: Argument) -> dict[str, Any]:
    """Return an argument as a property of JSON Schema."""
    of_one = _JSON[argument.sql_type.removesuffix("[]")]
    is_list = argument.sql_type.endswith("[]")
    return {
        **({"type": "array", "items": of_one} if is_list else of_one),
        "description": argument.help,
    }


def text(types: str) -> str:
    """Return the file, not formatted; `types` is the text of database.types.ts."""
    codes = sorted(
        ((error.kind, code) for code, error in (errors._CLASSES | errors._STATE_CLASSES).items())
    )
    arguments = {
        one.sql_name: _json_schema(one)
        for one in ARGUMENTS.values()
        if one.sql_name not in _NOT_THE_CALLERS
    }
    called = re.compile("facet_|read_my_|explain_(my_|public_)?empty_")
    modules = {name: module_of(name) for name in sorted(functions()) if called.match(name)}
    kinds = [one.kind for one in error_classes()]
    lines = "\n".join(
        (
            HEADER,
            "",
            *re.findall(r"^export type Json = .*?;$", types, re.M | re.DOTALL),
            "",
            "/** The arguments of a search. */",
            f"export type SearchArguments = {_arguments_of_a_search(types)};",
            "",
            "/** The functions that search, with what each takes. */",
            "export type Searches = {",
            *(f"{name}: {_arguments(name)};" for name in _SEARCHES),
            "};",
            "",
            "/** How both legs are fused. */",
            f"export const FUSIONS = {json.dumps(FUSIONS)} as const;",
            "export type Fusion = typeof FUSIONS[number];",
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
            "/** An argument in JSON Schema. */",
            "export interface ArgumentSchema {",
            "  type: 'string' | 'integer' | 'number' | 'boolean' | 'array' | 'object';",
            "  format?: string;",
            "  items?: ArgumentSchema;",
            "  minimum?: number;",
            "  maximum?: number;",
            "  description?: string;",
            "}",
            "",
            "/** The arguments that a caller can set; who asks is none of them. */",
            "export const ARGUMENTS: Record<"
            f"Exclude<keyof SearchArguments, {' | '.join(map(json.dumps, _NOT_THE_CALLERS))}>,"
            f" ArgumentSchema> = {json.dumps(arguments)};",
            "",
            "/** The columns that a condition of a filter can name. */",
            f"export const FILTER_COLUMNS = {json.dumps(COLUMNS)} as const;",
            "",
            "/** The operators of conditions, by what their value is. */",
            "export type FilterOperators = {",
            *(
                f"{takes}: {' | '.join(json.dumps(op) for op in TAKES if TAKES[op] == takes)};"
                for takes in dict.fromkeys(TAKES.values())
            ),
            "};",
            "",
            "/** Below this `answer_confidence`, the question may be off the subject. */",
            f"export const OFF_SUBJECT = {OFF_SUBJECT};",
            "",
            "/** What the tools of models say of themselves. */",
            *(
                f"export const {name} = {json.dumps(getattr(tool_arguments, name))};"
                for name in ("DESCRIPTION", "ADVICE")
            ),
            *(
                f"/** @internal */ export const {name} = "
                f"{json.dumps(getattr(tool_arguments, name))};"
                for name in ("ANSWER_BOUND", "LEFT_OUT", "OVER_BUDGET", "INVISIBLE")
            ),
            "",
            f"export type ErrorKind = {' | '.join(map(json.dumps, kinds))};",
            "",
            "/** @internal What to do after an error of a kind. */",
            "export const REMEDIES: Record<ErrorKind, string> = "
            f"{json.dumps({one.kind: one.default_remedy for one in error_classes()})};",
            "",
            "/** @internal What to do after a code, where that is more than its kind says. */",
            "export const REMEDIES_OF_CODES: Record<string, string> = "
            f"{json.dumps(errors._REMEDIES)};",
            "",
            "/** @internal What to do so that visitors can search. */",
            f"export const VISITORS_REMEDY = {json.dumps(errors.VISITORS_REMEDY)};",
            "",
            "/** @internal SQLSTATEs (or their first two letters), PostgREST codes, statuses. */",
            "export const CODES: Partial<Record<ErrorKind, string>> = "
            + json.dumps(
                {
                    kind: " ".join(code for _, code in group)
                    for kind, group in groupby(codes, key=lambda pair: pair[0])
                }
            )
            + ";",
            "",
            "/** @internal The module of each function that is called and not of core. */",
            f"export const MODULES: Record<string, string> = {json.dumps(modules)};",
            "",
        )
    )
    # Names without quotes, which are enough but for codes.
    return re.sub(r'"([a-z]\w*)"(\??: )', r"\1\2", lines)


def tools() -> str:
    """Return the file of the tools that only read, not formatted."""
    listed = {
        name: {
            "title": tool.title,
            "description": tool.description,
            "failed": tool.failed,
            "inputSchema": tool.model_json_schema(),
        }
        for name, tool in server._TOOLS.items()
    }
    of_service = {"rank", "rerank_score", "original_rank", "valid_from", "valid_until"}
    passage = [name for name in mcp_text.Passage.model_fields if name not in of_service]
    excerpts = {
        name: tool.excerpt
        for name, tool in server._TOOLS.items()
        if issubclass(tool, SearchKnowledgeBase | HybridSearch)
    }
    return "\n".join(
        (
            HEADER,
            "",
            "import type { Json } from './contract.ts';",
            "",
            "export interface Tool {",
            "  title: string;",
            "  description: string;",
            "  /** How the text of an error begins. */",
            "  failed: string;",
            "  inputSchema: {",
            "    properties: Record<string, { [key: string]: Json }>;",
            "    [key: string]: Json;",
            "  };",
            "}",
            "",
            "/** The tools of the MCP server that only read. */",
            f"export const TOOLS = {json.dumps(listed)} satisfies Record<string, Tool>;",
            "",
            f"export const INSTRUCTIONS = {json.dumps(server._INSTRUCTIONS)};",
            "",
            "/** Collections that are searched only when the call asks for them. */",
            f"export const [MEMORY, HISTORY] = {json.dumps([plan.MEMORY, plan.HISTORY])};",
            "",
            "/** What the tool fetch reads at once. */",
            f"export const MOST_CHARACTERS = {documents.DOCUMENT_BOUND};",
            f"export const MOST_CHUNKS = {documents.MOST_CHUNKS};",
            "/** A result as a model reads it, and what an answer may have. */",
            f"export const PASSAGE_COLUMNS = {json.dumps(passage)} as const;",
            f"export const EXCERPTS = {json.dumps(excerpts)};",
            f"export const MORE = {json.dumps(mcp_text._MORE)};",
            f"export const METADATA_COLUMNS = {json.dumps(documents.METADATA_COLUMNS)};",
            "",
        )
    )
