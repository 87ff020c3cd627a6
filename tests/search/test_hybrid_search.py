"""The order of the rows that a limit cuts in the legs of a search, read from the SQL."""

import re

import pytest
from sql_trees import body, function

LIMITS = {"nearest_rows": 1, "compared_rows": 1, "worded_rows": 1}
LIMITS |= {"exact_scores": 1, "nearest_candidates": 1, "vector_leg": 2, "text_leg": 2}


@pytest.mark.parametrize(("name", "limits"), LIMITS.items())
def test_a_limit_stands_over_an_order_that_is_total(name: str, limits: int) -> None:
    """Or directly over the distance of an index, which takes no second key."""
    text = re.sub(r"'\s+'|\s+", " ", body(function(name, "knowledge_internal")))
    while text != (text := re.sub(r"\((?:(?!select|extensions\.<)[^()])*\)", "", text)):
        pass
    orders = re.findall(r"order by ((?:(?!order by).)+?)\s+limit", text)
    assert len(orders) == limits
    for order in orders:
        assert re.search(r", \w+\.id$", order) or ("<=>" in order and "," not in order), order
