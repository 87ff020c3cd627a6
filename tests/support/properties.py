"""How often a property is tried: on one corpus, however long an example takes."""

from hypothesis import HealthCheck, settings


def tried(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
