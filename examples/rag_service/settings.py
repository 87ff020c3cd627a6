"""The settings: environment variables with the names of the fields in upper case."""

import os
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from second_brain.services.results import OFF_SUBJECT

Text = Annotated[str, Field(min_length=1)]


class Settings(BaseModel):
    """The settings of the service; `.env.example` describes each variable."""

    # A message about a wrong value must not contain the value.
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    second_brain_dsn: Annotated[SecretStr, Field(min_length=1)]
    second_brain_embedder: Text = "wordllama"
    second_brain_embedder_address: Text | None = None
    second_brain_embedder_key: SecretStr | None = None

    jwt_secret: Annotated[SecretStr, Field(min_length=32)] | None = None
    jwks_url: Text | None = None
    jwt_audience: Text = "authenticated"
    jwt_issuer: Text | None = None
    jwt_groups: Text | None = None

    llm_base_url: Text
    llm_model: Text
    llm_api_key: SecretStr = SecretStr("none")

    least_answer_confidence: Annotated[float, Field(ge=0, le=1)] = OFF_SUBJECT
    answer_seconds: Annotated[float, Field(gt=0, le=600)] = 60
    concurrent_requests: Annotated[int, Field(ge=1, le=1000)] = 20
    database_connections: Annotated[int, Field(ge=1, le=100)] = 4

    api_pages: bool = False

    @model_validator(mode="after")
    def _one_way_to_verify(self) -> Self:
        if (self.jwt_secret is None) == (self.jwks_url is None):
            raise ValueError("set JWT_SECRET or JWKS_URL, and not both")
        return self

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings of the environment; an empty variable counts as not set."""
        variables = {name: os.environ.get(name.upper()) for name in cls.model_fields}
        return cls.model_validate({name: value for name, value in variables.items() if value})
