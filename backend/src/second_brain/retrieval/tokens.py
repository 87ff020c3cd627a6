"""What fits into a budget of tokens: one rule, which hybrid_search.ts has for JavaScript."""

from collections.abc import Callable, Iterable

from second_brain.errors import ConfigurationError

CHARACTERS_PER_TOKEN = 4

CountTokens = Callable[[str], int]
"""Returns the number of tokens of a text, as a model's tokenizer does."""


def count_tokens(text: str) -> int:
    """Return the tokens of a text where no tokenizer is given: a quarter of its characters."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def within(texts: Iterable[str], most: int | None, count: CountTokens = count_tokens) -> int:
    """Return how many of the first texts have at most `most` tokens together, at least one."""
    number = used = 0
    for text in texts:
        used += 0 if most is None else _counted(text, count)
        if number and most is not None and used > most:
            break
        number += 1
    return number


def _counted(text: str, count: CountTokens) -> int:
    try:
        number = count(text)
    except Exception as error:
        raise ConfigurationError(f"count_tokens raised {type(error).__name__}") from error
    if type(number) is not int or number < 0:
        raise ConfigurationError("count_tokens must return an integer of 0 or more")
    return number
