"""Break SQL or Python in one place at a time and run the suite that must notice.

Each mutant replaces one text, in a copy of this checkout: of a file of supabase/schemas, there and
in the migration that is written from it, or of a Python module of second_brain. The text must occur
exactly once in each file. A mutant is killed when a test of its suite fails, not when the database
cannot be built. `--check` only looks for the texts.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".*", "node_modules", "__pycache__", "results")
LARGE = "--small-corpus-limit 0"  # every corpus is searched as a large one
OPTIONS = ("-x", "-q", "--tb=no", "--no-shrinking")
SECONDS = 900  # for one suite


@dataclass(frozen=True)
class Mutant:
    """What is wrong, the file with the text before and after, and the suite that must fail."""

    name: str
    file: str
    old: str
    new: str
    suite: str

    def files(self, root: Path) -> list[Path]:
        """The source, and the migration that is written from it."""
        if self.file.endswith(".py"):
            return [root / "backend" / "src" / "second_brain" / self.file]
        number, _, subject = Path(self.file).name.partition("_")
        return [
            root / "supabase" / "schemas" / self.file,
            root / "migrations" / f"{int(number):03}_{subject}",
        ]

    def apply(self, root: Path) -> None:
        """Replace the text in the checkout; ValueError unless it occurs exactly once."""
        for file in self.files(root):
            text = file.read_text("utf-8")
            if text.count(self.old) != 1:
                raise ValueError(
                    f"{self.name}: {file.name} has the text {text.count(self.old)} times"
                )
            file.write_text(text.replace(self.old, self.new), "utf-8")


# Of the search itself.
SEARCH = [
    Mutant(
        "an index search ignores the viewer",
        "core/07_rows.sql",
        "searchable_chunks as chunk'\n    '     where ' || scope.matching ||",
        "searchable_chunks as chunk'\n    '     where chunk.status = ''active''' ||",
        "tests/security/test_groups.py -k test_a_viewer_of_most_rows_finds_no_hidden_one",
    ),
    Mutant(
        "a search ignores the viewer",
        "core/04_filters.sql",
        "    case when has_viewer then knowledge_internal.viewer_condition('chunk') end,\n",
        "",
        "tests/security/test_groups.py -k test_members_of_a_group_find_its_documents",
    ),
    Mutant(
        "titles of hidden documents in a large corpus",
        "core/04_filters.sql",
        "      then knowledge_internal.viewer_condition('document')\n",
        "      then 'true'\n",
        f"tests/security/test_groups.py -k test_hidden_neighbours_and_titles_stay_hidden {LARGE}",
    ),
    Mutant(
        "titles of private documents for visitors",
        "core/04_filters.sql",
        "when scope.public_only then 'document.visibility = ''public'''",
        "when scope.public_only then 'true'",
        "tests/security/test_public_search.py -k no_title",
    ),
    Mutant(
        "the words around a hit are those of hidden chunks",
        "core/07_rows.sql",
        "    ' where ' || scope.visible ||\n    ' group by hit.id'",
        "    ' where true'\n    ' group by hit.id'",
        "tests/security/test_groups.py -k test_hidden_neighbours_and_titles_stay_hidden",
    ),
    Mutant(
        "a filter on what is hidden does not hold",
        "core/04_filters.sql",
        "'(%s <> all (%s)) is not false'",
        "'(%s = all (%s)) is not false'",
        "tests/search/test_filters.py -k test_a_condition_on_a_column",
    ),
    Mutant(
        "ranks of rrf begin at 0",
        "core/10_hybrid_search.sql",
        "plan.vector_weight / (rrf_k + combined.vector_rank)",
        "plan.vector_weight / (rrf_k + combined.vector_rank - 1)",
        "tests/search/test_search.py -k test_a_chunk_that_both_legs_find_is_first",
    ),
    Mutant(
        "the pool is one row short",
        "core/08_legs.sql",
        "vector_rows := least(plan.pool, cardinality(near.ids));",
        "vector_rows := least(plan.pool - 1, cardinality(near.ids));",
        "tests/search/test_full_pools.py -k test_the_vector_leg_always_fills_its_pool",
    ),
    Mutant(
        "a page repeats the last row of the one before",
        "core/10_hybrid_search.sql",
        "rows[match_offset + 1:match_offset + match_count]",
        "rows[greatest(match_offset, 1):match_offset + match_count]",
        "tests/search/test_pages.py -k test_pages_have_every_hit_of_the_largest_pool_once",
    ),
    Mutant(
        "a compared row is not one of the collection",
        "core/07_rows.sql",
        "    case when collection is not null then ' and chunk.collection = $5' else '' end ||\n"
        "    '  offset 0'",
        "    '  offset 0'",
        "tests/search/test_search_properties.py -k test_collections_are_ranked_by_themselves",
    ),
    Mutant(
        "an excluded word does not exclude",
        "core/05_query_analysis.sql",
        "  analysis.matching_query := analysis.matching_query && !!conditions.excluded;",
        "  analysis.matching_query := analysis.matching_query;",
        "tests/search/test_text_leg.py",
    ),
    Mutant(
        "an upper bound of metadata is exclusive",
        "core/04_filters.sql",
        '"lte": "<="',
        '"lte": "<"',
        "tests/search/test_filters.py tests/search/test_filters_reference.py",
    ),
    Mutant(
        "date_to is exclusive",
        "core/04_filters.sql",
        "'chunk.document_date <= ($1).wanted.date_to'",
        "'chunk.document_date < ($1).wanted.date_to'",
        "tests/search/test_filters.py tests/search/test_hybrid_search.py",
    ),
    Mutant(
        "a user's search leaves out the groups",
        "core/11_searches.sql",
        "    knowledge_internal.current_viewer_groups(), on_bad_embedding",
        "    '{}', on_bad_embedding",
        "tests/security/test_groups.py -k test_a_user_finds_what_the_projects_function_allows",
    ),
    Mutant(
        "a visitor sees private rows",
        "core/11_searches.sql",
        "    null, true, one_per_document,",
        "    null, false, one_per_document,",
        "tests/security/test_public_search.py -k test_a_visitor_finds_public_rows_only",
    ),
    Mutant(
        "a visitor's pool has the bound of a service",
        "core/11_searches.sql",
        "('pool_size', arguments.pool_size, 1, 100, null, true),",
        "('pool_size', arguments.pool_size, 1, 1000, null, true),",
        "tests/security/test_public_search.py",
    ),
    Mutant(
        "a user's lists are not bounded",
        "core/11_searches.sql",
        "case when is_visitor then 750 else 2500 end",
        "case when is_visitor then 750 else 250000 end",
        "tests/security/test_public_search.py",
    ),
    Mutant(
        "anybody may search for visitors",
        "modules/visitors/41_visitors.sql",
        "revoke all on function public.search_public_knowledge_chunks\n"
        "  from public, anon, authenticated, service_role;",
        "",
        "tests/security/test_access.py",
    ),
    Mutant(
        "a facet has one value too many",
        "modules/facets/21_facets.sql",
        "ranked.place_in_facet <= facet_limit",
        "ranked.place_in_facet <= facet_limit + 1",
        "tests/search/test_facets.py",
    ),
    Mutant(
        "the text leg of a large corpus ignores the filter",
        "core/07_rows.sql",
        "    ' where ' || scope.matching ||\n    -- Without",
        "    ' where chunk.status = ''active''' ||\n    -- Without",
        f"tests/search/test_filters.py {LARGE}",
    ),
    Mutant(
        "the vector index ignores the collection",
        "core/07_rows.sql",
        "' and chunk.collection = $5' else '' end ||\n    '       and chunk.embedding",
        "'' else '' end ||\n    '       and chunk.embedding",
        "tests/search/test_full_pools.py -k test_the_index_finds_the_nearest_rows",
    ),
    Mutant(
        "text ranks begin at 2",
        "core/10_hybrid_search.sql",
        "vector_results.vector_rank, text_results.text_rank,\n",
        "vector_results.vector_rank, text_results.text_rank + 1 as text_rank,\n",
        "tests/search/test_search.py",
    ),
    Mutant(
        "a snippet has the tags of the content",
        "core/05_query_analysis.sql",
        "'<', '&lt;'), '>'",
        "'<', '<'), '>'",
        "tests/search/test_snippets.py",
    ),
    Mutant(
        "the score ignores a boost",
        "core/09_fusion.sql",
        "else (one.hit).score * boost.product end as score",
        "else (one.hit).score end as score",
        "tests/search/test_boosts.py",
    ),
    Mutant(
        "counts ignore min_confidence",
        "core/11_searches.sql",
        "   where (rated.confidence < given.min_confidence) is not true;",
        "   where true;",
        "tests/search/test_variety.py -k the_threshold",
    ),
    Mutant(
        "a duplicate is shown",
        "core/09_fusion.sql",
        ") > least_cosine then first_value(one.place) over same",
        ") > least_cosine then one.place",
        "tests/search/test_variety.py -k duplicate",
    ),
    Mutant(
        "a missing argument has another code",
        "core/11_searches.sql",
        "'query_embedding is missing' using errcode = '22023'",
        "'query_embedding is missing' using errcode = '22004'",
        "tests/search/test_search.py -k test_a_single_leg_refuses_by_name",
    ),
]
REST = [
    Mutant(
        "a word is replaced by a hidden one",
        "modules/words/20_words.sql",
        "'              where ' || coalesce(scope.visible, 'chunk.status = ''active''') ||",
        "'              where chunk.status = ''active''' ||",
        "tests/search/test_typos.py -k hidden",
    ),
    Mutant(
        "hidden words crowd out a visible one",
        "modules/words/20_words.sql",
        "case when not is_restricted then most_near end",
        "most_near",
        "tests/search/test_typos.py -k test_hidden_near_words_do_not_crowd_out_a_visible_one",
    ),
    Mutant(
        "hidden words crowd out a visible completion",
        "modules/words/20_words.sql",
        "    when scope.is_restricted is not true\n"
        "      then array(select knowledge_internal.completions(",
        "    when true\n      then array(select knowledge_internal.completions(",
        "tests/search/test_other_words.py -k hidden_words_do_not_crowd",
    ),
    Mutant(
        "hidden spellings crowd out a visible one",
        "modules/words/20_words.sql",
        "limit case when scope.is_restricted is not true then most_spellings end",
        "limit most_spellings",
        "tests/search/test_other_words.py -k hidden_spellings",
    ),
    Mutant(
        "an upsert drops chunks beyond the 300th",
        "core/12_writing.sql",
        "             ) as content_hash\n           ) as hashed\n  ),",
        "             ) as content_hash\n           ) as hashed\n"
        "     where item.ordinality <= 300\n  ),",
        "tests/writing/test_writing.py",
    ),
    Mutant(
        "chunks that are not given stay",
        "core/12_writing.sql",
        "     where not change.is_given and change.stored_id is not null",
        "     where change.is_given is null and change.stored_id is not null",
        "tests/writing/test_writing.py",
    ),
    Mutant(
        "a deleted owner leaves old versions",
        "core/12_writing.sql",
        "              where chunk.owner_id = owner\n",
        "              where chunk.owner_id = owner and chunk.status = 'active'\n",
        "tests/writing/test_deletion.py",
    ),
    Mutant(
        "an embedding of an adopted table is given to others",
        "core/12_writing.sql",
        "            and document.source_row is not null\n",
        "            and false\n",
        "tests/adoption/test_carrying.py tests/adoption/test_rights.py",
    ),
    Mutant(
        "a chunk does not follow the owner of its document",
        "core/12_writing.sql",
        "         owner_id = new.owner_id,\n",
        "",
        "tests/writing/test_writing.py",
    ),
    Mutant(
        "a changed text keeps its embedding",
        "core/12_writing.sql",
        "       and new.content_hash <> old.content_hash\n",
        "       and new.content_hash = old.content_hash\n",
        "tests/writing/test_writing.py tests/writing/test_chunk_analysis.py"
        " tests/writing/test_embedding_queue.py",
    ),
    Mutant(
        "a text is handed out once too often",
        "modules/embedding_queue/23_embedding_queue.sql",
        "  return 5;",
        "  return 6;",
        "tests/writing/test_embedding_queue.py",
    ),
    Mutant(
        "a user deletes documents of others",
        "modules/own_documents/22_own_documents.sql",
        "     and owned.owner_id = viewer\n",
        "",
        "tests/security/test_own_documents.py",
    ),
    Mutant(
        "a document shows hidden chunks",
        "core/07_rows.sql",
        "    ' where ' || scope.visible || ' and (chunk.id = any ($2)",
        "    ' where true and (chunk.id = any ($2)",
        "tests/security/test_read_document.py -k test_the_chunks_keep_to_the_scope_too",
    ),
    Mutant(
        "a policy shows superseded chunks",
        "core/01_documents.sql",
        "    status = 'active'\n    and (\n      visibility = 'public'",
        "    (\n      visibility = 'public'",
        "tests/security/test_access.py",
    ),
    Mutant(
        "a policy shows private documents",
        "core/01_documents.sql",
        "  using (\n    visibility = 'public'\n",
        "  using (\n    visibility is not null\n",
        "tests/security/test_access.py",
    ),
    Mutant(
        "users may select from the tables",
        "core/01_documents.sql",
        "  to service_role;\n\ncreate policy knowledge_documents_read",
        "  to service_role, authenticated;\n\ncreate policy knowledge_documents_read",
        "tests/security/test_access.py",
    ),
]
PYTHON = [
    Mutant(
        "a cached answer is older than a write",
        "services/calls.py",
        "        if functions()[function].writes:\n            written()\n",
        "",
        "tests/service/test_cached_answers.py",
    ),
    Mutant(
        "a whole document looks like its first chunk",
        "services/searches.py",
        '"is_chunk": row.get("chunk_index", 0) is not None,',
        '"is_chunk": True,',
        "tests/search/test_normalized_rows.py",
    ),
]
MUTANTS = (*SEARCH, *REST, *PYTHON)


def outcome(mutant: Mutant) -> tuple[str, str, float]:
    """Run the suite in a copy: killed, survived or broken; the first test that failed; seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="second-brain-mutant-") as place:
        copy = Path(place) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        mutant.apply(copy)
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "pytest", *mutant.suite.split(), *OPTIONS],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "backend" / "src")},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    failed = re.search(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE)
    result = "killed" if failed else "survived" if done.returncode == 0 else "broken"
    shown = failed[1] if failed else done.stdout.strip().rpartition("\n")[2]
    return result, shown, time.monotonic() - begun


def main() -> int:
    """Run the mutants whose names have the given words; 1 if one is not killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their name")
    parser.add_argument("--jobs", type=int, default=2, help="at the same time (default 2)")
    parser.add_argument("--check", action="store_true", help="only apply each to a copy")
    given = parser.parse_args()
    mutants = [
        one for one in MUTANTS if not given.words or any(word in one.name for word in given.words)
    ]
    if given.check:
        for one in mutants:
            with tempfile.TemporaryDirectory() as place:
                for folder in ("supabase", "migrations", "backend/src"):
                    shutil.copytree(ROOT / folder, Path(place) / folder)
                one.apply(Path(place))
        return 0
    killed = 0
    with ThreadPoolExecutor(given.jobs) as threads:
        for one, (result, shown, took) in zip(mutants, threads.map(outcome, mutants), strict=True):
            killed += result == "killed"
            print(f"| {one.name} | {one.suite} | {result} | {shown} | {took:.0f} s |", flush=True)
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
