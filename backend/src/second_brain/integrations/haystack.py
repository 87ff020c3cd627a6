"""Haystack: a document store, two retrievers that search it, and a tool over the service."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.tools.tool import Tool
from haystack.utils import Secret
from haystack.utils.filters import document_matches_filter

from second_brain.errors import InvalidInputError
from second_brain.filters import FilterExpression, Operator, Part
from second_brain.integrations import awaited
from second_brain.integrations.conditions import Joint, all_of, joined
from second_brain.integrations.store import IfStored, Stored, Text, TextStore
from second_brain.integrations.tool import SearchTool
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.tool_arguments import DESCRIPTION
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import Database

_OPERATORS: Mapping[str, Operator] = {
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    ">=": "gte",
    "<": "lt",
    "<=": "lte",
    "in": "in",
    "not in": "not_in",
}

_OF_IDS: Mapping[str, Operator] = {"==": "in", "in": "in", "!=": "not_in", "not in": "not_in"}

_OWN_FIELDS = frozenset(one.name for one in dataclasses.fields(Document))
"""The fields of a document that are not its metadata."""

_JOINTS: Mapping[str, Joint] = {"AND": "and", "OR": "or", "NOT": "not"}

_IF_STORED: Mapping[DuplicatePolicy, IfStored] = {
    DuplicatePolicy.NONE: "stop",
    DuplicatePolicy.FAIL: "stop",
    DuplicatePolicy.SKIP: "skip",
    DuplicatePolicy.OVERWRITE: "replace",
}


class SecondBrainDocumentStore:
    """A document store: each document is a document of one collection, its id the `external_key`.

    `database` is a `Secret` with a connection string, a connection string, a pool or a connection,
    as service_role or as the owner of the tables; only a pipeline with a `Secret` from an
    environment variable can be serialised. `embedding_model` is the name that is stored with the
    embeddings. `fields` and `options` as in `TextStore`. Raises a SecondBrainError.

    The methods that take `filters` read the whole collection and compare each document with
    Haystack's own function. The retrievers give their filters to the database.
    """

    def __init__(
        self,
        database: Secret | Database,
        *,
        embedding_model: str,
        collection: str = "knowledge",
        fields: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        schema: str = SCHEMA,
    ) -> None:
        self._database = database
        self._arguments = {
            "embedding_model": embedding_model,
            "collection": collection,
            "fields": fields,
            "options": options,
            "schema": schema,
        }
        resolved = database.resolve_value() if isinstance(database, Secret) else database
        if resolved is None:
            raise InvalidInputError("database is a Secret without a value")
        self._store = TextStore(
            resolved,
            embedding_model=embedding_model,
            collection=collection,
            fields=fields,
            options=options,
            schema=schema,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the store's arguments for a serialised pipeline, without the secret itself."""
        if not isinstance(self._database, Secret):
            raise InvalidInputError(
                "a store with a connection string, pool or connection cannot be serialised",
                remedy='Pass database=Secret.from_env_var("SECOND_BRAIN_DSN").',
            )
        return default_to_dict(self, database=self._database.to_dict(), **self._arguments)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the store of a serialised pipeline."""
        arguments = dict(data["init_parameters"])
        if isinstance(arguments["database"], Mapping):
            arguments["database"] = Secret.from_dict(dict(arguments["database"]))
        made: Self = default_from_dict(cls, {**data, "init_parameters": arguments})
        return made

    def count_documents(self) -> int:
        """Return the number of documents."""
        return self._store.count()

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that match the filters."""
        return len(self.filter_documents(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match the filters, in the order of their ids.

        Raises FilterError for wrong filters.
        """
        if filters and "operator" not in filters:
            raise FilterError(f"'operator' key missing in {filters}")
        documents = map(_document, self._store.everything(with_embedding=True))
        return [one for one in documents if not filters or _matches(filters, one)]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Store documents in one transaction and return the number of those that are written.

        Raises DuplicateDocumentError with the policies FAIL and NONE when an id is stored, and
        ValueError for a document without text.
        """
        if not isinstance(documents, list) or not all(
            isinstance(one, Document) for one in documents
        ):
            raise ValueError("documents must be a list of haystack.Document")
        texts = [_text(one) for one in documents]
        different = {text.key for text in texts}
        if_stored = _IF_STORED[policy]
        if if_stored == "stop" and len(different) < len(texts):
            raise DuplicateDocumentError("documents has two documents with the same id")
        stored = self._store.write(texts, if_stored=if_stored)
        if if_stored == "stop" and stored:
            raise DuplicateDocumentError(f"a document with the id {stored[0]!r:.100} is stored")
        return len(different - set(stored)) if if_stored == "skip" else len(texts)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents with these ids; missing ones are ignored."""
        self._store.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents of the collection."""
        self._store.clear()

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match the filters and return their number."""
        found = [one.id for one in self.filter_documents(filters)]
        self._store.delete(found)
        return len(found)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set keys in the metadata of the documents that match the filters; return their number."""
        found = self.filter_documents(filters)
        self._store.write([_text(one, meta) for one in found])
        return len(found)

    # Haystack's names for an event loop.
    count_documents_async = awaited(count_documents)
    count_documents_by_filter_async = awaited(count_documents_by_filter)
    filter_documents_async = awaited(filter_documents)
    write_documents_async = awaited(write_documents)
    delete_documents_async = awaited(delete_documents)
    delete_all_documents_async = awaited(delete_all_documents)
    delete_by_filter_async = awaited(delete_by_filter)
    update_by_filter_async = awaited(update_by_filter)

    def search(
        self,
        query_embedding: Sequence[float] | None,
        query: str | None,
        top_k: int,
        filters: dict[str, Any] | None = None,
    ) -> list[Document]:
        """Return the best documents with their scores, for the retrievers.

        Without a query the score is the cosine similarity (-1 to 1), else the score relative to the
        highest possible one (0 to 1).
        """
        conditions = all_of(_tree(filters)) if filters else None
        found = self._store.search(query_embedding, query, top_k, conditions)
        return [_document(one, one.score) for one in found]


class _Retriever:
    """The arguments of both retrievers."""

    def __init__(
        self,
        document_store: SecondBrainDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
    ) -> None:
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k

    def to_dict(self) -> dict[str, Any]:
        """Return the retriever's arguments for a serialised pipeline."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the retriever of a serialised pipeline."""
        arguments = dict(data["init_parameters"])
        store = arguments["document_store"]
        if isinstance(store, Mapping):
            arguments["document_store"] = SecondBrainDocumentStore.from_dict(dict(store))
        made: Self = default_from_dict(cls, {**data, "init_parameters": arguments})
        return made

    def _found(
        self,
        embedding: list[float] | None,
        query: str | None,
        filters: dict[str, Any] | None,
        top_k: int | None,
    ) -> dict[str, list[Document]]:
        limit = self.top_k if top_k is None else top_k
        both = [one for one in (self.filters, filters) if one]
        joined = {"operator": "AND", "conditions": both} if both else None
        return {"documents": self.document_store.search(embedding, query, limit, joined)}


@component
class SecondBrainEmbeddingRetriever(_Retriever):
    """A retriever by vectors. The filters of a run hold beside those of the retriever."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the documents with the most similar embeddings."""
        return self._found(query_embedding, None, filters, top_k)

    run_async = component.output_types(documents=list[Document])(awaited(run))


@component
class SecondBrainHybridRetriever(_Retriever):
    """A retriever by vectors and text. The filters of a run hold beside those of the retriever."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the best documents; without an embedding, by text only."""
        return self._found(query_embedding, query, filters, top_k)

    run_async = component.output_types(documents=list[Document])(awaited(run))


def search_tool(
    service: RetrievalService | None = None,
    *,
    async_service: AsyncRetrievalService | None = None,
    name: str = "search",
    description: str = DESCRIPTION,
    arguments: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Tool:
    """Return a tool for agents: the model sets the query and `arguments`, never `options`.

    `arguments` are names of SearchQuery; the default is `limit`, `offset`, `date_from` and
    `date_to` without what `options` has. Any other argument of a call is refused by name.
    """
    tool = SearchTool(service, async_service, description, arguments, options)
    return Tool(
        name,
        tool.description,
        tool.schema.model_json_schema(),
        tool.function,
        async_function=tool.async_function,
    )


def _text(document: Document, meta: Mapping[str, Any] | None = None) -> Text:
    if document.content is None or document.blob is not None:
        raise ValueError(f"document {document.id} must have text and no blob")
    return Text(
        document.id, document.content, {**document.meta, **(meta or {})}, document.embedding
    )


def _document(stored: Stored, score: float | None = None) -> Document:
    return Document(
        id=stored.key,
        content=stored.content,
        meta=stored.metadata,
        embedding=stored.embedding,
        score=score,
    )


def _matches(filters: Mapping[str, Any], document: Document) -> bool:
    """Say whether a document passes filters; a value of another type passes no comparison."""
    if "conditions" in filters:
        joint = _JOINTS.get(filters.get("operator", ""))
        if joint is None:
            return bool(document_matches_filter(dict(filters), document))
        parts = [_matches(one, document) for one in filters["conditions"]]
        return any(parts) if joint == "or" else all(parts) == (joint == "and")
    try:
        return bool(document_matches_filter(dict(filters), document))
    except FilterError:
        # It raises again if it is the filter that is wrong.
        same = Document(content="", meta={"value": filters.get("value")})
        document_matches_filter({**filters, "field": "meta.value"}, same)
        return False


def _tree(filters: Mapping[str, Any]) -> Part:
    if not isinstance(filters, Mapping):
        raise FilterError(f"filters must be a dict, not {type(filters).__name__}")
    if "field" not in filters:
        for key in ("operator", "conditions"):
            if key not in filters:
                raise FilterError(f"{key!r} key missing in {filters}")
        joint = _JOINTS.get(filters["operator"])
        if joint is None:
            raise FilterError(
                f"operator must be {', '.join(_JOINTS)}, not {filters['operator']!r:.100}"
            )
        return joined(joint, [_tree(one) for one in filters["conditions"]])
    for key in ("operator", "value"):
        if key not in filters:
            raise FilterError(f"{key!r} key missing in {filters}")
    field, operator, value = str(filters["field"]), filters["operator"], filters["value"]
    if operator not in _OPERATORS:
        raise FilterError(f"operator must be one of {', '.join(_OPERATORS)}, not {operator!r:.100}")
    if field == "id" and operator in _OF_IDS:
        keys = value if isinstance(value, list) else [value]
        return FilterExpression("external_key", _OF_IDS[operator], list(map(str, keys)))
    if field in _OWN_FIELDS:
        raise FilterError(
            f"{field} {operator} cannot be searched: filter by meta.<key>, or by id with "
            f"{', '.join(_OF_IDS)}; filter_documents compares all fields"
        )
    return FilterExpression(f"metadata.{field.removeprefix('meta.')}", _OPERATORS[operator], value)
