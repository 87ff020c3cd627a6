"""The language of a document, told from its text. Offline: the model comes with py3langid."""

from functools import cache
from typing import Any

from second_brain.errors import MissingExtraError

DEFAULT_LANGUAGE = "english"
"""What a text is taken for when nothing is said, and when its language cannot be told."""

_CHARACTERS_READ = 20_000
_LEAST_PROBABILITY = 0.5
_ENGLISH = "en"
_NO_LANGUAGE = "zxx"  # source code, numbers


def detect_language(text: str) -> str:
    """Return the language of a text, read by its beginning: `english`, else its ISO 639-1 code.

    A text too short or too mixed to tell, such as source code, counts as `english`.
    """
    code, probability = _identifier().classify(text[:_CHARACTERS_READ])
    if code in (_ENGLISH, _NO_LANGUAGE) or probability < _LEAST_PROBABILITY:
        return DEFAULT_LANGUAGE
    return str(code)


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
    except ImportError as exc:
        raise MissingExtraError("py3langid", "ingest") from exc
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # Codes of three letters are dialects, which take probability away from their language.
    identifier.set_languages(
        [code for code in identifier.labels if len(code) == 2 or code == _NO_LANGUAGE]
    )
    return identifier
