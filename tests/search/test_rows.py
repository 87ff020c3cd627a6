"""A search reads chunks by core/06_rows.sql alone; who else names their table is listed here."""

import re
from pathlib import Path

import pytest
from sql_trees import body, definitions, dotted

import second_brain

ROWS = "006_rows.sql"
# Its own form of what a distributed engine cannot plan.
OF_AN_ENGINE = "036_citus.sql"
# The other places of rows.
OF_PLACES = {"nearest_elsewhere", "caller_condition", "adopted_filters", "rows_by_id"}
# Another place for the rows, or another engine, has to look at each of these, too.
WRITERS = {
    "pass_document_on",
    "pass_headings_on",
    "refuse_chunk",
    "given_embedding",
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
    "adoption_differences",
    "adoption_keys",
    "adoption_left_over",
    "adopt_table",
    "carry_over",
    "lock_adopted",
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
    "with_statistics",
    "frequencies_in_scope",
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
    "holding_condition",
    "supersede_knowledge_document",
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
    refused = re.compile(
        r"\b(?:lateral|(?:left|right|full) (?:outer )?join|with|exists|for update)\b"
    )
    assert {"rows_by_id", "nearest_rows", "compared_rows", "worded_rows"} <= READERS.keys()
    assert [name for name, text in READERS.items() if refused.search(text)] == []
    for name, text in READERS.items():
        parts = text.count("' union '") + max(text.count("return query"), 1)
        assert len(NAMES.findall(joined(text)) + VIEW.findall(joined(text))) == parts, name


# In place, a row of the table has neither its text nor its embedding: the view chunk_rows has both,
# and content_of the text. Who reads these columns of the table itself, and why.
OF_THE_TABLE = {
    "write_chunk_rows": "the view",
    "use_vector_index": "the view of the index",
    "nearest_rows": "the index of the table; nearest_elsewhere has the others",
    "vector_leg": "the same",
    "nearest_elsewhere": "the same",
    "matching_rows": "of the view; another of its statements names the table",
    "claim_knowledge_embeddings": "the same",
    "visible_words": "its sub-select: content_of is asked where the text is needed",
    "chunk_sizes": "the same",
    "repeated_texts": "the same",
    "write_rows": "an embedding that is not given stays",
    "store_placed_rows": "the same",
    "adoption_differences": "whether the table has it",
    "row_health": "bits that an embedding of the table lacks",
    "words_by_part": "an index of the table, which has the identifiers of rows in place",
}
ALIASES = re.compile(
    r"\b(?:from|join|update|only)\s+"
    r"(?:(?:public|\{schema\})\.knowledge_chunks|knowledge_internal\.searchable_chunks)\s+as\s+(\w+)"
)
CONTENT_OF = re.compile(
    r"coalesce\(\s*(\w+)\.content,\s*knowledge_internal\.content_of\(\1\.id\)\s*\)"
)
# A store may connect as service_role, and reads the documents that it has written; what the vector
# index of the table holds.
OF_THE_PACKAGE = {"store.py", "stored.py"}
PACKAGE = Path(second_brain.__file__).parent


def reads_kept_elsewhere(text: str) -> bool:
    """Say whether SQL reads a text or an embedding of a row of the table."""
    code = CONTENT_OF.sub("", joined(text))
    return any(
        re.search(rf"\b{alias}\.(?:content|embedding)\b", code) for alias in ALIASES.findall(code)
    )


@pytest.mark.module("words", "insight", "adoption", "embedding_queue", "field_weights")
def test_who_reads_a_text_or_an_embedding_of_the_table_itself_is_listed() -> None:
    assert {name for _, name, text in FOUND if reads_kept_elsewhere(text)} == OF_THE_TABLE.keys()


def test_the_package_reads_texts_and_embeddings_from_the_view() -> None:
    found = {
        file.name
        for file in PACKAGE.rglob("*.py")
        if any(map(reads_kept_elsewhere, file.read_text("utf-8").split('"""')[1::2]))
    }
    assert found == OF_THE_PACKAGE
