"""The base of results that nobody may change."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A model whose fields cannot be set."""

    model_config = ConfigDict(frozen=True)
