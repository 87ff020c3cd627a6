"""Settings, sizes and databases for which no vector index is built."""

from typing import Any

import pytest

from second_brain.database import migrations, vector_index
from second_brain.database.vector_index import IndexSettings
from second_brain.errors import ConfigurationError, InvalidInputError, MigrationMissingError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "bit"}, "kind must be vector or halfvec, not bit"),
        ({"m": 1}, "m must be between 2 and 100, not 1"),
        ({"m": 101}, "m must be between 2 and 100, not 101"),
        ({"ef_construction": 3}, "ef_construction must be between 32"),
        ({"m": 40}, "between 80 .twice m. and 1000, not 64"),
        ({"ef_construction": 1001}, "not 1001"),
        ({"workers": -1}, "workers must be"),
    ],
)
def test_parameters_that_hnsw_does_not_take_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        IndexSettings(**arguments)


def test_missing_migrations_are_an_error(plain_dsn: str) -> None:
    with pytest.raises(MigrationMissingError):
        vector_index.build(plain_dsn)


def test_more_dimensions_than_pgvector_stores_cannot_be_migrated(plain_dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="1 to 16000"):
        migrations.apply(plain_dsn, dimensions=16_001)
