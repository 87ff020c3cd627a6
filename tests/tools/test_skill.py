"""The skill in skills/second-brain: its form, and that what it names is there."""

import re
from pathlib import Path

from second_brain.mcp_server.documents import Document, Fetch
from second_brain.mcp_server.searching import HybridSearch, SearchKnowledgeBase
from second_brain.retrieval.answer import SearchResponse, SearchResult
from second_brain.services.results import OFF_SUBJECT

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "skills" / "second-brain" / "SKILL.md").read_text("utf-8")


def test_the_skill_has_the_form_of_a_skill() -> None:
    found = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL)
    assert found is not None
    # The name is that of the folder; the lengths are those of the format.
    assert found[1] == "second-brain"
    assert 1 <= len(found[2]) <= 1024
    assert len(SKILL.splitlines()) <= 60


def test_what_the_skill_names_is_there() -> None:
    tools = {"hybrid_search", "search_knowledge_base", "fetch"}
    named = set(re.findall(r"`([a-z][a-z_.]*)`", SKILL.partition("\n# ")[2]))
    fields: set[str] = set()
    models = (HybridSearch, SearchKnowledgeBase, Fetch, SearchResponse, SearchResult, Document)
    for model in models:
        fields |= model.model_fields.keys() | model.model_computed_fields.keys()
    values = {"both", "text", "vector", "metadata.next_offset", "replaced"}
    assert named - tools - fields - values == set()
    assert re.findall(r"(?:Below|From|below) (0\.\d+)", SKILL).count(str(OFF_SUBJECT)) >= 3
    assert "up to 50" in SKILL
