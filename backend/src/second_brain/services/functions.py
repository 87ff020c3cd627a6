"""The SQL functions that this package calls: their arguments, and what they return.

One table serves psycopg and REST; a test compares it with the SQL of the package.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, LiteralString, cast

from second_brain.services.arguments import ARGUMENTS, VIEWER

Returns = Literal["rows", "row", "value"]
"""A list of rows, one row of a composite type, or one value."""

VECTOR = ARGUMENTS["query_embedding"].sql_type


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the install's schema: the SQL types of its arguments, and what it returns.

    A call that `writes` is not repeated after a lost connection.
    """

    name: str
    arguments: Mapping[str, str]
    returns: Returns
    writes: bool = False


def _search(name: str, *left_out: str) -> Function:
    arguments = {
        one.sql_name: one.sql_type for one in ARGUMENTS.values() if one.name not in left_out
    }
    return Function(name, arguments, "rows")


_SEARCHES = (
    _search("hybrid_search_knowledge_chunks"),
    _search("search_my_knowledge_chunks", *VIEWER),
    _search("search_public_knowledge_chunks", *VIEWER, "public_only"),
)

# What a function takes for a search as one object is `search`.
_READS = """
hybrid_search_knowledge_chunks_batch(queries jsonb, fuse boolean) rows
match_knowledge_chunks(
  query_embedding extensions.vector, match_count integer, match_threshold double precision,
  filter_type text, viewer_id uuid, public_only boolean, viewer_groups text[]
) rows
search_knowledge_chunks_fulltext(
  query_text text, search_mode text, filter_type text, match_count integer, viewer_id uuid,
  public_only boolean, viewer_groups text[]
) rows
explain_hybrid_search(search jsonb) value
explain_empty_knowledge_search(search jsonb) value
explain_my_empty_knowledge_search(search jsonb) value
explain_public_empty_knowledge_search(search jsonb) value
estimate_hybrid_search(search jsonb) value
explain_missing_knowledge_chunk(search jsonb, chunk_id uuid, document_key text) value
count_matching_knowledge_chunks(search jsonb) value
count_pending_knowledge_embeddings(search jsonb) value
count_my_pending_knowledge_embeddings(search jsonb) value
facet_knowledge_chunks(search jsonb, facets text[], facet_limit integer) rows
facet_my_knowledge_chunks(search jsonb, facets text[], facet_limit integer) rows
read_knowledge_question(search jsonb) value
knowledge_candidates(search jsonb, readings jsonb) value
fuse_knowledge_candidates(search jsonb, readings jsonb, candidates jsonb) value
knowledge_candidate_hits(search jsonb, readings jsonb, page jsonb) rows
read_knowledge_document(
  document uuid, viewer_id uuid, viewer_groups text[], public_only boolean, collections text[],
  chunk_count integer, chunk_offset integer
) value
list_visible_knowledge_documents(
  viewer_id uuid, viewer_groups text[], public_only boolean, collections text[],
  page_size integer, after_key text
) rows
list_my_knowledge_documents(
  page_size integer, after_key text, include_public boolean, include_groups boolean
) rows
read_my_knowledge_document(document uuid, chunk_count integer, chunk_offset integer) value
knowledge_embedding_models() rows
missing_knowledge_embeddings(content_hashes text[], model text) value
list_knowledge_settings() rows
list_knowledge_judgments(in_collection text, by_user uuid) rows
list_knowledge_documents(
  in_collection text, of_type text, in_state text, named text, after_key text, page_size integer
) rows
describe_knowledge_document(
  document_key text, document_id uuid, chunk_id uuid, chunk_count integer, chunk_offset integer
) value
knowledge_corpus_overview() value
knowledge_search_health() value
report_knowledge_queries(since timestamptz, most integer) value
pending_knowledge_embeddings() rows
failed_knowledge_embeddings(max_rows integer) rows
record_knowledge_queries(queries jsonb, most_rows integer, max_age interval) value
"""
# record_knowledge_queries is here because a lost line of the log is worse than a line twice, and
# because the results of searches stay the same.

_WRITES = """
upsert_knowledge_document(document jsonb, chunks jsonb, fields text) rows
delete_knowledge_document(document_key text) value
delete_knowledge_owner(owner uuid) rows
delete_my_knowledge_document(document uuid) value
purge_knowledge_chunks(older_than interval) value
refresh_knowledge_statistics() value
set_knowledge_settings(
  collection text, fusion text, vector_weight double precision, text_weight double precision,
  embedding_model text, measured_on text
) row
set_knowledge_fields(
  collection text, heading_weight integer, title_weight integer, text_keys text[]
) row
rewrite_knowledge_chunks(most integer) value
reset_knowledge_settings(collection text) value
set_knowledge_judgments(judgments jsonb) value
delete_knowledge_judgments(
  question text, collection text, judged_by uuid, is_generated boolean
) value
claim_knowledge_embeddings(
  model text, max_chunks integer, lease interval, worker text, collections text[]
) rows
store_knowledge_embeddings(model text, results jsonb, worker text) rows
retry_knowledge_embeddings(model text) value
"""


def _read(text: str, writes: bool) -> list[Function]:
    return [
        Function(
            name,
            dict(one.strip().split(maxsplit=1) for one in arguments.split(",") if one.strip()),
            cast(Returns, returns),
            writes,
        )
        for name, arguments, returns in re.findall(r"(\w+)\(([^)]*)\) (\w+)", text)
    ]


FUNCTIONS: Mapping[str, Function] = {
    one.name: one for one in (*_SEARCHES, *_read(_READS, False), *_read(_WRITES, True))
}

WITH_SEARCH = frozenset(one.name for one in FUNCTIONS.values() if "search" in one.arguments)
"""The SQL functions that take the arguments of a search as one object."""


@cache
def statement(name: str, given: tuple[str, ...]) -> LiteralString:
    """Return the statement, for psycopg, that calls a function with the given arguments.

    It is written for the default install, and has names of this module only.
    """
    kinds = FUNCTIONS[name].arguments
    arguments = ", ".join(
        # pgvector can be in another schema: the function's argument says the type.
        f"{one} => %({one})s" + ("" if kinds[one] == VECTOR else f"::{kinds[one]}")
        for one in given
    )
    return f"select * from public.{name}({arguments})"  # noqa: S608


def packed(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the SQL function takes them.

    Searches have named arguments. Functions that count, explain or compare searches take those of
    the search as one object, `search`.
    """
    if function not in WITH_SEARCH:
        return arguments
    names = {one.sql_name for one in ARGUMENTS.values()}
    search = {name: value for name, value in arguments.items() if name in names}
    others = {name: value for name, value in arguments.items() if name not in names}
    return {"search": search, **others}
