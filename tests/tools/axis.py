"""Three texts and a model by hand, for the stores and retrievers of the frameworks."""

KEYS = "Service role keys are rotated every 90 days."
LEAKED = "A leaked key is revoked first."
INVOICE = "An invoice is cancelled by a credit note."


def axis(text: str) -> list[float]:
    """Return rotated keys along one axis, other keys near it, and all else along another."""
    if "rotate" in text:
        return [0.0, 0.0, 1.0]
    return [0.0, 0.6, 0.8] if "key" in text else [1.0, 0.0, 0.0]
