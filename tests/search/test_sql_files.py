"""What every function and every file of SQL has, and what none has; read by a parser."""

import re

from pglast import ast
from pglast.enums import ObjectType
from pglast.stream import RawStream
from sql_trees import PUBLIC_FUNCTIONS, Function, body, definitions, dotted, nodes, parsed, words

from second_brain.database import migrations

ATTRIBUTES = re.compile(
    r"^language (?:sql|plpgsql)(?P<volatility> (?:immutable|stable|volatile))?"
    r"(?: parallel (?:safe|restricted))? security (?:invoker|definer)"
    r" set search_path = \w+(?:, \w+)*(?: as \$\$| as '|$)",
    re.MULTILINE,
)


def test_a_function_states_its_properties_in_one_order() -> None:
    def states_them(definition: Function) -> bool:
        stated = [option.defname for option in definition.options]
        expected = ["language", "volatility", "parallel", "security", "set"]
        if definition.returnType and dotted(definition.returnType.names) == "trigger":
            expected.remove("volatility")
        if "parallel" not in stated:
            expected.remove("parallel")
        # How many rows the planner expects may follow.
        return stated[: len(expected)] == expected and set(stated) <= {*expected, "rows", "as"}

    assert [dotted(one.funcname) for _, one in definitions() if not states_them(one)] == []


def test_the_properties_of_a_function_stand_on_one_line() -> None:
    made = [
        text
        for one in migrations.find_state()
        for _, text in migrations.statements(one.sql)
        if re.search(r"^create (?:or replace )?function ", text, re.MULTILINE)
    ]
    assert made
    assert [text for text in made if len(ATTRIBUTES.findall(text)) != 1] == []


def test_a_file_with_public_functions_ends_by_telling_postgrest() -> None:
    last = {file_name: RawStream()(parsed()[file_name][-1]) for file_name, _ in PUBLIC_FUNCTIONS}
    assert last == dict.fromkeys(last, "NOTIFY pgrst, 'reload schema'")


COMMENTS = [one for statements in parsed().values() for one in nodes(statements, ast.CommentStmt)]


def test_no_comment_is_on_an_internal_object() -> None:
    on_schema = [one for one in COMMENTS if one.objtype == ObjectType.OBJECT_SCHEMA]
    assert [one.object.sval for one in on_schema] == ["knowledge_internal"]
    named = [RawStream()(one).partition(" IS ")[0] for one in COMMENTS if one not in on_schema]
    assert [one for one in named if "knowledge_internal." in one.partition("(")[0]] == []


def test_one_place_names_the_dimension() -> None:
    sized = [
        (file_name, one.typmods[0].val.ival)
        for file_name, statements in parsed().items()
        for one in nodes(statements, ast.TypeName)
        if dotted(one.names).split(".")[-1] in {"vector", "halfvec"} and one.typmods
    ]
    assert sized == [("001_documents.sql", 1024)]
    text = " ".join(word for one in migrations.find() for word in words(one.sql))
    assert re.findall(r"\b(?:vector|halfvec) \( (\d+) \)", text) == ["1024"]


def test_a_file_starts_with_its_name_and_purpose() -> None:
    for one in migrations.find():
        first, second, *_ = one.sql.splitlines()
        assert re.fullmatch(rf"-- {one.version}_{one.name}: \S.*\.", first), one.file_name
        assert second.startswith("-- "), one.file_name


NAMED_AT_RUN_TIME = {
    "public.knowledge_candidate_hits",
    "public.explain_hybrid_search",
    "public.explain_missing_knowledge_chunk",
    *(
        f"knowledge_internal.{name}"
        for name in (
            "adopted_rows",
            "carry_over_changes",
            "follow_table",
            "locked_document",
            "carry_over_again",
            "adoption_keys",
            "adoption_left_over",
            "embed_place_rows",
            "nearest_elsewhere",
            "write_places",
            "place_order",
            "let_search",
            "keep_old_search",
            "end_searches",
            "end_drop_in_searches",
            "caller_condition",
            "write_readers",
            "reader_faults",
            "pending_next_chunks",
            "write_embeddings",
            "physical_table",
            "rows_in_scope",
            "some_rows",
            "rows_of",
            "sizes_of_documents",
            "surroundings",
            "nearest_rows",
            "compared_rows",
            "worded_rows",
            "matching_rows",
            "measured_rows",
            "visible_documents",
            "unmatched_question",
            "listed_documents",
            "pending_embeddings",
            "visible_words",
            "words_by_part",
            "document_content",
            "shows_row",
            "known_instead",
            "reason_without_notes",
            "with_statistics",
            "frequencies_in_scope",
            "named_rows",
        )
    ),
}


def test_no_sql_is_put_together_at_run_time() -> None:
    made_of = {"execute", "query_to_xml", "query_to_xml_and_xmlschema", "query_to_xmlschema"}

    def is_fixed(name: str, text: str) -> bool:
        if not made_of & set(words(text)):
            return True
        # The vector index's type needs its dimensions spelled out; no search comes by it.
        if "knowledge_internal.indexed_embedding" in text:
            return True
        # The fusions' names, which are ours.
        if "knowledge_settings_fusion_check" in text:
            return True
        # A project's table, and columns that exist only during a re-embedding, have no static SQL.
        # Their names are quoted by %I or come as a regclass; values are parameters of `using`. The
        # conditions of row_scope are text, because those of absent filters are left out.
        return (
            name in NAMED_AT_RUN_TIME
            and ("%L" not in text or name.endswith(("_places", "_readers")))
            # What creates a trigger or a function, or is explained, takes no parameters.
            and (
                "using" in words(text)
                or bool(
                    re.search(
                        "_(table|places|readers|order|search|searches|condition|faults)$", name
                    )
                )
            )
        )

    # Module citus distributes tables that are named in its own text.
    blocks = [
        one
        for file_name, statements in parsed().items()
        for one in statements
        if isinstance(one, ast.DoStmt) and "citus" not in file_name and "distrib" not in file_name
    ]
    assert [one for one in map(body, blocks) if not is_fixed("do", one)] == []
    named = [(dotted(one.funcname), body(one)) for _, one in definitions()]
    assert [name for name, text in named if not is_fixed(name, text)] == []


def test_query_text_is_never_parsed_as_a_tsquery() -> None:
    parsing = [dotted(one.funcname) for _, one in definitions() if "to_tsquery" in words(body(one))]
    assert parsing == []


def test_who_may_see_a_row_is_said_in_few_places() -> None:
    # Two policies, the conditions of row_scope, and the list of a user's own documents.
    conditions = [
        one.file_name
        for one in migrations.find()
        for _ in re.finditer(r"\ballowed_groups\s*&&", one.sql)
    ]
    assert len(conditions) <= 4, conditions


def test_no_setting_carries_what_a_search_found() -> None:
    assert not [
        (one.file_name, word)
        for one in migrations.find()
        for word in words(one.sql)
        if "knowledge_internal.trac" in word
    ]
