"""A search reads chunks by core/07_rows.sql alone; who else names their table is listed here."""

import re

import pytest
from sql_trees import body, definitions, dotted

ROWS = "007_rows.sql"
# Its own form of what a distributed engine cannot plan.
OF_AN_ENGINE = "036_citus.sql"
# The other places of rows.
OF_PLACES = {"nearest_elsewhere", "caller_condition", "reader_faults", "rows_by_id"}
# Another place for the rows, or another engine, has to look at each of these, too.
WRITERS = {
    "pass_document_on",
    "refuse_chunk",
    "given_embedding",
    "stored_rows",
    "write_rows",
    "deleted_chunks",
    "store_chunks",
    "delete_knowledge_document",
    "delete_knowledge_owner",
    "purge_knowledge_chunks",
    "release_words",
    "tidy_words",
    "pending_chunks",
    "pending_next_chunks",
    "pending_texts",
    "pending_embeddings",
    "claim_knowledge_embeddings",
    "write_embeddings",
    "failed_knowledge_embeddings",
    "store_adopted_rows",
    "adoption_differences",
    "adoption_keys",
    "adoption_left_over",
    "checked_place",
    "placed_chunks",
    "store_placed_rows",
    "delete_adopted",
    "delete_judgments",
    "pass_title_on",
    "rewrite_knowledge_chunks",
}
STATISTICS = {
    "model_weight",
    "sampled_spread",
    "chunks_of_configurations",
    "refresh_knowledge_statistics",
    "counted_corpus",
    "read_settings",
    "counted_chunks",
    "ranked_corpus",
    "knowledge_embedding_models",
    "stored_collections",
    "query_configurations",
    "mean_length_so_far",
    "health_findings",
    "row_health",
    "explain_hybrid_search",
    "estimated_list",
    "stored_models",
    "summarised_documents",
    "repeated_texts",
    "chunk_sizes",
    "sample_knowledge_embeddings",
    "use_vector_index",
    "write_chunk_rows",
}
# The plain search, whose rows are all active ones.
PLAIN = {"hybrid_search_knowledge_chunks", "vector_leg", "text_leg"}
# They read rows that a search may not return, of any status, or one document as it is stored.
WITHOUT_A_SCOPE = {
    "named_rows",
    "hidden_by",
    "explain_missing_knowledge_chunk",
    "read_judgment",
    "list_knowledge_judgments",
    "list_knowledge_documents",
    "describe_knowledge_document",
}
# Rows by their ids: the numbers that an arrangement compares, a text that is kept elsewhere.
BY_ID = {"measured_rows", "content_of"}
# One statement for many words, two scopes at once, and the condition of a document with chunks.
OF_A_SCOPE = {"visible_words", "words_by_part", "shown_rows", "document_condition"}
NAMES = re.compile(r"\b(?:from|join|update|into|only)\s+public\.knowledge_chunks\b")
VIEW = re.compile(r"\b(?:from|join)\s+knowledge_internal\.(?:searchable_chunks|chunk_rows)\b")


def naming(text: str) -> bool:
    """Say whether a body reads or writes the table, in a string of SQL too."""
    return bool(NAMES.search(joined(text)) or VIEW.search(joined(text)))


def joined(text: str) -> str:
    """Return a body without comments and without the quotes between the parts of a string."""
    return re.sub(r"--[^\n]*", "", text).replace("'\n", "").replace("'", "")


FOUND = [(file, dotted(one.funcname).split(".")[1], body(one)) for file, one in definitions()]
READERS = {name: text for file, name, text in FOUND if file == ROWS and naming(text)}


@pytest.mark.module("words", "insight", "adoption", "embedding_queue", "field_weights")
def test_only_the_rows_and_who_is_listed_name_the_table_of_chunks() -> None:
    named = {
        name for file, name, text in FOUND if file not in {ROWS, OF_AN_ENGINE} and naming(text)
    }
    listed = WRITERS | STATISTICS | PLAIN | WITHOUT_A_SCOPE | BY_ID | OF_A_SCOPE | OF_PLACES
    assert named - listed == set()


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("select from public.knowledge_chunks as chunk", True),
        ("execute 'select from '\n  'public.knowledge_chunks as chunk where ' || matching", True),
        ("update public.knowledge_chunks set status = 'deleted'", True),
        ("select from knowledge_internal.searchable_chunks as chunk", True),
        ("join knowledge_internal.chunk_rows as row on true", True),
        ("chunk public.knowledge_chunks; -- from public.knowledge_chunks", False),
        ("raise exception 'analyze public.knowledge_chunks'", False),
    ],
)
def test_a_name_is_found_in_text_that_becomes_sql(text: str, is_found: bool) -> None:
    assert naming(text) is is_found


def test_a_reader_of_rows_is_one_statement_that_a_distributed_engine_plans() -> None:
    """The module of that engine has its own form of compared_rows."""
    refused = re.compile(
        r"\b(?:lateral|(?:left|right|full) (?:outer )?join|with|exists|for update)\b"
    )
    assert {"rows_by_id", "nearest_rows", "worded_rows"} <= READERS.keys()
    assert [name for name, text in READERS.items() if refused.search(text)] == ["compared_rows"]
    for name, text in READERS.items():
        parts = text.count("' union '") + max(text.count("return query"), 1)
        assert len(NAMES.findall(joined(text)) + VIEW.findall(joined(text))) == parts, name
