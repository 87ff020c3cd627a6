"""What the stores of all frameworks share: texts with ids, written, read, searched and deleted.

A store is for a trusted backend: like the writer, it connects as service_role or as the owner of
the tables. Only its searches can be limited to a viewer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Literal, LiteralString, TypeVar, get_args
from uuid import UUID

import psycopg
from psycopg.rows import RowFactory, class_row, scalar_row, tuple_row
from psycopg.types.json import Jsonb

from second_brain.errors import InvalidInputError
from second_brain.filters import Filters, json_form
from second_brain.services.calls import finished
from second_brain.services.install import SCHEMA, Install
from second_brain.services.postgres import Database, PostgresProvider
from second_brain.services.write import KnowledgeWriter

Mode = Literal["hybrid", "vector", "text"]
IfStored = Literal["replace", "skip", "stop"]
MODES: tuple[str, ...] = get_args(Mode)

# One chunk for each document of a store; documents from elsewhere may have more.
_COLUMNS = """
  select document.external_key as key, document.id as document_id, chunk.id as chunk_id,
         chunk.content, chunk.metadata,
         case when %(with_embedding)s then chunk.embedding::real[] end as embedding
    from public.knowledge_documents as document
    join public.knowledge_chunks as chunk on chunk.document_id = document.id
   where document.collection = %(collection)s
     and chunk.status = 'active'
"""

# The f-strings contain only the constant above.
_OF_KEYS: LiteralString = f"""
  {_COLUMNS}
     and document.external_key = any (%(keys)s::text[])
   order by document.external_key, chunk.chunk_index, chunk.id
"""

_OF_CHUNKS: LiteralString = f"""
  {_COLUMNS}
     and chunk.id = any (%(chunk_ids)s::uuid[])
"""

_PAGE: LiteralString = f"""
  {_COLUMNS}
     and document.external_key in (
           select page.external_key
             from public.knowledge_documents as page
            where page.collection = %(collection)s
              and page.external_key > %(after_key)s
            order by page.external_key
            limit %(page_size)s
         )
   order by document.external_key, chunk.chunk_index, chunk.id
"""  # noqa: S608

_LABELLED = """
  select external_key
    from public.knowledge_documents
   where collection = %(collection)s
     and metadata operator(pg_catalog.@>) %(metadata)s
   order by external_key
"""

_ELSEWHERE = """
  select external_key
    from public.knowledge_documents
   where external_key = any (%(keys)s::text[])
     and collection <> %(collection)s
   order by external_key
   limit 1
"""

_OF_HERE = """
  select external_key
    from public.knowledge_documents
   where external_key = any (%(keys)s::text[])
     and collection = %(collection)s
   order by external_key
"""

# Of module own_documents; a store may not read the table of an adopted collection.
_KEPT_ELSEWHERE = """
  select part ->> 'id', part ->> 'content'
    from jsonb_array_elements(
           public.read_knowledge_document(
             document => %(document_id)s, chunk_count => %(page_size)s, chunk_offset => %(offset)s
           ) -> 'chunks'
         ) as part
"""

_COUNT = "select count(*) from public.knowledge_documents where collection = %(collection)s"

_PAGE_SIZE = 500

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Text:
    """A text with its id and metadata, to write; None as embedding leaves it to a worker."""

    key: str
    content: str
    metadata: Mapping[str, Any]
    embedding: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored text. `score` is that of the search that found it: see `TextStore.search`."""

    key: str
    document_id: UUID
    chunk_id: UUID
    content: str
    metadata: dict[str, Any]
    embedding: list[float] | None
    score: float = 0.0


class TextStore:
    """The texts of one collection, each a document with one chunk whose `external_key` is its id.

    `database` is a pool, a connection string or a connection; a service should use a pool.
    `embedding_model` is the name that is stored with the embeddings. `fields` are further fields of
    each document that is written, such as `{"language": "german", "visibility": "public"}`.
    `options` are arguments of each search, such as `{"viewer_id": ...}`; `timeout` is for each
    transaction, too. All methods raise a SecondBrainError.
    """

    def __init__(
        self,
        database: Database,
        *,
        embedding_model: str,
        collection: str = "knowledge",
        fields: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        schema: str = SCHEMA,
    ) -> None:
        self._provider = PostgresProvider(database, schema=schema)
        self._install = Install(schema)
        self._model = embedding_model
        self._collection = collection
        self._fields = dict(fields or {})
        self._options = dict(options or {})
        timeout = self._options.get("timeout")
        self._writer = KnowledgeWriter(database, schema=schema, timeout=timeout)
        for name in ("external_key", "collection", "metadata"):
            if name in self._fields:
                raise InvalidInputError(f"fields must not have {name!r}: the store sets it")
        _check_options(self._options)

    def write(self, texts: Sequence[Text], *, if_stored: IfStored = "replace") -> list[str]:
        """Store texts in one transaction; return the ids that were stored before.

        Those texts are replaced or skipped; with `stop`, nothing is written when there is one. An
        id that another collection has is refused: ids are unique in an install.
        """
        names = checked_ids([text.key for text in texts])
        by_key = {key: replace(text, key=key) for key, text in zip(names, texts, strict=True)}
        # In this order, two writers of the same texts wait for each other without a deadlock.
        ordered = sorted(by_key.values(), key=lambda text: text.key)
        keys = [text.key for text in ordered]

        def written(connection: psycopg.Connection[Any]) -> list[str]:
            writer = self._writer_on(connection)
            for key in self._rows(connection, _ELSEWHERE, {"keys": keys}):
                raise InvalidInputError(
                    f"the id {key!r:.100} is a document of another collection",
                    remedy="Use other ids, such as UUIDs, or another schema for each store.",
                )
            before = self._rows(connection, _OF_HERE, {"keys": keys})
            if if_stored == "stop" and before:
                return before
            skipped = set(before if if_stored == "skip" else ())
            for text in ordered:
                if text.key not in skipped:
                    writer.upsert_document(*self._document(text), fields="replace")
            return before

        return self._in_transaction(written, keys)

    def _document(self, text: Text) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return a text as a document and its chunk. Raises InvalidInputError."""
        chunk: dict[str, Any] = {"content": text.content}
        if text.embedding is not None:
            chunk |= {"embedding": text.embedding, "embedding_model": self._model}
        name = f"metadata of {text.key!r:.100}"
        if not isinstance(text.metadata, Mapping):
            raise InvalidInputError(f"{name} must be a dict, not {type(text.metadata).__name__}")
        document = {
            **self._fields,
            "external_key": text.key,
            "collection": self._collection,
            "metadata": json_form(dict(text.metadata), name),
        }
        return document, [chunk]

    def _writer_on(self, connection: psycopg.Connection[Any]) -> KnowledgeWriter:
        return KnowledgeWriter(connection, schema=self._install.schema)

    def get(self, keys: Sequence[str]) -> list[Stored]:
        """Return the texts with these ids, in the order of the ids; missing ones are left out.

        The chunks of a document that was not written by a store are joined to one text.
        """
        keys = checked_ids(keys)
        arguments = {"keys": keys, "with_embedding": False}
        found = self._stored(_OF_KEYS, arguments)
        by_key = {one.key: one for one in _joined(found)}
        return [by_key[key] for key in dict.fromkeys(keys) if key in by_key]

    def labelled(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return the ids of the texts whose metadata contains this."""
        return self._read(_LABELLED, {"metadata": Jsonb(json_form(dict(metadata), "metadata"))})

    def everything(self, *, with_embedding: bool = False) -> Iterator[Stored]:
        """Yield all texts of the collection in the order of their ids, in pages of 500."""
        after_key = ""
        while True:
            arguments = {"after_key": after_key, "with_embedding": with_embedding}
            page = self._stored(_PAGE, arguments)
            if not page:
                return
            yield from _joined(page)
            after_key = page[-1].key

    def count(self) -> int:
        """Return the number of documents in the collection."""
        (number,) = self._read(_COUNT, {})
        return int(number)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the texts with these ids in one transaction; missing ones are ignored."""
        names = checked_ids(keys)

        def deleted(connection: psycopg.Connection[Any]) -> None:
            writer = self._writer_on(connection)
            for key in self._rows(connection, _OF_HERE, {"keys": names}):
                writer.delete_document(key)

        self._in_transaction(deleted, names)

    def clear(self) -> None:
        """Delete all documents of the collection, page by page."""
        while keys := [one.key for one in islice(self.everything(), _PAGE_SIZE)]:
            self.delete(keys)

    def search(
        self,
        embedding: Sequence[float] | None,
        text: str | None,
        limit: int,
        filters: Filters | None = None,
        /,
        *,
        with_embedding: bool = False,
        **options: Any,
    ) -> list[Stored]:
        """Search the collection with both legs, or with the one whose argument is given.

        `score` is the cosine similarity without a text, else the fused score divided by the highest
        that the weights allow (0 to 1). `options` are arguments of `hybrid_search` and replace
        those of the store.
        """
        _check_options(options)
        # Without a threshold a store returns `limit` texts, also those of negative similarity.
        given = {"threshold": -1.0, **self._options, **options}
        hits, _ = self._provider.find(
            embedding,
            text,
            top_k=limit,
            filters=filters,
            collections=[self._collection],
            **given,
        )
        arguments = {"chunk_ids": [hit.id for hit in hits], "with_embedding": with_embedding}
        rows = self._stored(_OF_CHUNKS, arguments, {hit.id: hit.content for hit in hits})
        stored = {str(one.chunk_id): one for one in rows}
        found = []
        for hit in hits:
            # A text may be deleted between the two calls.
            if (one := stored.get(hit.id)) is not None:
                similarity = hit.metadata.get("similarity")
                score = hit.confidence if text or similarity is None else similarity
                found.append(replace(one, score=score))
        return found

    def _stored(
        self,
        statement: LiteralString,
        arguments: Mapping[str, Any],
        texts: Mapping[str, str] | None = None,
    ) -> list[Stored]:
        """Read texts. Of adopted tables, `texts` has them by chunk, or they are read by document.

        Raises ModuleMissingError if module own_documents is needed and is not there.
        """
        rows: list[Stored] = self._read(statement, {**arguments, "page_size": _PAGE_SIZE}, _STORED)
        known = dict(texts or {})
        for one in rows:
            offset = 0
            while one.content is None and str(one.chunk_id) not in known:
                given = {"document_id": one.document_id, "page_size": _PAGE_SIZE, "offset": offset}
                parts = self._read(_KEPT_ELSEWHERE, given, tuple_row)
                if not parts:
                    break  # The row is gone.
                known.update(parts)
                offset += _PAGE_SIZE
        return [
            one
            if one.content is not None
            else replace(one, content=known.get(str(one.chunk_id), ""))
            for one in rows
        ]

    def _in_transaction(
        self, work: Callable[[psycopg.Connection[Any]], Outcome], keys: Sequence[str] | None = None
    ) -> Outcome:
        """Run the work in a transaction, or in a savepoint of the caller's; see the writer."""
        outcome: Outcome = finished(self._writer._transaction(work, keys))
        return outcome

    def _read(self, *statement: Any) -> list[Any]:
        return self._in_transaction(lambda connection: self._rows(connection, *statement))

    def _rows(
        self,
        connection: psycopg.Connection[Any],
        statement: LiteralString,
        arguments: Mapping[str, Any],
        row_factory: RowFactory[Any] = scalar_row,
    ) -> list[Any]:
        given = {**arguments, "collection": self._collection}
        with connection.cursor(row_factory=row_factory) as cursor:
            # Behind a transaction pooler, the next statement has another session.
            cursor.execute(self._install.statement(statement), given, prepare=False)
            return cursor.fetchall()


_STORED = class_row(Stored)


def checked_ids(ids: Sequence[str | UUID]) -> list[str]:
    """Return ids as texts. Raises InvalidInputError for what is none: it would name no document."""
    if isinstance(ids, str):
        raise InvalidInputError(f"ids must be a list of ids, not {ids!r:.100}")
    for place, one in enumerate(ids):
        if not isinstance(one, str | UUID):
            raise InvalidInputError(f"ids[{place}] must be a text, not {type(one).__name__}")
    given: list[str] = json_form(list(ids), "ids")
    return given


def _check_options(options: Mapping[str, Any]) -> None:
    for name in ("query_embedding", "query_text", "top_k", "filters", "collections"):
        if name in options:
            raise InvalidInputError(
                f"options must not have {name!r}: the store sets it",
                remedy="Use the framework's own arguments for the query, the filter and the limit.",
            )


def questions(
    mode: str, embedding: Sequence[float] | None, text: str | None
) -> tuple[Sequence[float] | None, str | None]:
    """Return the parts of a question that the mode searches with."""
    if mode not in MODES:
        raise InvalidInputError(f"mode must be one of {', '.join(MODES)}, not {mode!r:.100}")
    return (None if mode == "text" else embedding), (None if mode == "vector" else text)


def _joined(stored: Iterable[Stored]) -> Iterator[Stored]:
    """Yield one text for each document, of chunks in the order of documents and positions."""
    for _, chunks in groupby(stored, lambda one: one.key):
        first, *rest = chunks
        content = "\n\n".join([first.content, *(one.content for one in rest)])
        yield replace(first, content=content)
