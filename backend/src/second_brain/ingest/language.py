"""Detection of a document's language from its text, offline with the model of py3langid."""

from functools import cache
from typing import Any

from second_brain.extras import needed

DEFAULT_LANGUAGE = "english"
"""The language of a text when none is given and when detection is not certain enough."""

_CHARACTERS_READ = 20_000
_LEAST_PROBABILITY = 0.5
_ENGLISH = "en"
_NO_LANGUAGE = "zxx"  # source code, numbers


def detect_language(text: str) -> str:
    """Return `english` or the ISO 639-1 code of the language of a text, by its beginning.

    A text that is too short or mixed, such as source code, is `english`.
    """
    code, probability = _identifier().classify(text[:_CHARACTERS_READ])
    if code in (_ENGLISH, _NO_LANGUAGE) or probability < _LEAST_PROBABILITY:
        return DEFAULT_LANGUAGE
    return str(code)


@cache
def _identifier() -> Any:
    with needed("py3langid", "ingest"):
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # Three-letter codes are dialects; with them the probability of the main language is too low.
    identifier.set_languages(
        [code for code in identifier.labels if len(code) == 2 or code == _NO_LANGUAGE]
    )
    return identifier
