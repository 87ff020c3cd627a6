"""A search with a budget of tokens: the best results until it is full, and what was left out."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from retrieving import BY_HAND, corpus

from second_brain.integrations.tool import SearchTool
from second_brain.mcp_server.text import found
from second_brain.retrieval import RetrievalService
from second_brain.retrieval.tokens import count_tokens, within
from second_brain.services.postgres import PostgresProvider

__all__ = ["corpus"]  # a fixture

CASES = json.loads((Path(__file__).parents[1] / "cases" / "tokens.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_texts_fit_as_the_table_says_which_javascript_reads_too(case: dict[str, Any]) -> None:
    assert within(case["texts"], case["most"]) == case["kept"]


@pytest.mark.parametrize("mode", ["hybrid", "text"])
def test_a_page_ends_where_the_budget_does_and_the_next_one_begins_there(
    corpus: str, mode: Any
) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND)
    whole = service.search("key", mode=mode, limit=3).results
    assert len(whole) >= 2
    most = sum(count_tokens(one.content) for one in whole[:2])
    for budget, kept in ((1, 1), (most - 1, 1), (most, 2), (10_000, len(whole))):
        page = service.search("key", mode=mode, limit=3, max_tokens=budget)
        assert page.results == whole[:kept]
        assert page.left_out == len(whole) - kept
    pages = list(service.search_pages("key", mode=mode, limit=3, max_tokens=1))
    everything = [one.id for one in service.search("key", mode=mode, limit=100).results]
    assert [one.id for page in pages for one in page.results] == everything
    assert {len(page.results) for page in pages} == {1}


def test_the_counter_of_the_caller_counts_what_is_shown(corpus: str) -> None:
    counted = list[str]()

    def words(text: str) -> int:
        counted.append(text)
        return len(text.split())

    service = RetrievalService(PostgresProvider(corpus), BY_HAND, count_tokens=words)
    (best,) = copy.copy(service).search("key", max_tokens=1, expand_neighbors=1).results
    assert counted[0] == best.context != best.content


def test_a_tool_counts_what_it_shows(corpus: str) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND)
    response = service.search("key", limit=3)
    tool = SearchTool(service, None, "Notes.", ["limit", "max_tokens"], {})
    answer = json.loads(tool.run(query="key", limit=3, max_tokens=1))
    assert (len(answer["results"]), answer["left_out"]) == (1, len(response.results) - 1)
    assert "max_tokens" in answer["hints"][0]
    # Each passage is quoted and cut: "> " and 10 characters, and the mark of an excerpt.
    shown = found(response, 10, max_tokens=8)
    assert (len(shown.results), shown.left_out) == (2, len(response.results) - 2)
    assert any("max_tokens" in hint for hint in shown.hints)
