"""The map of a corpus: a sample of its embeddings, projected to the plane that spreads them most.

Two principal components show which parts of a corpus are apart. They keep a small part of the
distances only: two points that lie together can still be far apart.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import class_row

from second_brain.services.install import Database

_SAMPLE = """
    select chunk_id, document_key, title, collection, knowledge_type, language, source_origin,
           embedding
    from public.sample_knowledge_embeddings(most => %(most)s::integer)
"""

MOST_POINTS = 2000

WIDTH, HEIGHT, MARGIN = 960, 600, 16
COLOURS = 8
"""Values with a colour of their own; the rest share one."""

COLOURED_BY = ("collection", "knowledge_type", "language", "source_origin")

_NEAREST = 10
_POWER_STEPS = 3
_EXTRA = 8

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampledEmbedding:
    """A chunk of the sample, with its embedding."""

    chunk_id: UUID
    document_key: str | None
    title: str | None
    collection: str
    knowledge_type: str
    language: str
    source_origin: str
    embedding: Vectors


@dataclass(frozen=True, slots=True)
class Point:
    """A chunk on the map; `colour` is the place of its value in the legend."""

    chunk_id: UUID
    title: str
    x: float
    y: float
    colour: int


@dataclass(frozen=True, slots=True)
class Near:
    """A chunk of the sample, and its cosine similarity to the question."""

    chunk_id: UUID
    title: str
    similarity: float


@dataclass(frozen=True, slots=True)
class EmbeddingMap:
    """The points, the legend, and the share of the variance (0 to 1) that the plane keeps."""

    points: Sequence[Point]
    legend: Sequence[tuple[str, int]]
    """Values and their points, most first; the last may be the rest, `""`."""

    kept: float
    question: tuple[float, float] | None
    nearest: Sequence[Near]


class _Floats(Loader):
    """Reads real[] in binary: psycopg would make a list of a million floats."""

    format = Format.BINARY

    def load(self, data: Buffer) -> Vectors:
        """Return the numbers: a head of 20 bytes, then each with its size before it."""
        parts = np.frombuffer(data, np.dtype([("size", ">i4"), ("number", ">f4")]), offset=20)
        return parts["number"].astype(np.float32)


def sampled(database: Database, most: int = MOST_POINTS) -> list[SampledEmbedding]:
    """Return at most `most` chunks with their embeddings."""
    with database.connection.cursor(binary=True, row_factory=class_row(SampledEmbedding)) as cursor:
        cursor.adapters.register_loader(cursor.adapters.types["float4"].array_oid, _Floats)
        cursor.execute(database.install.statement(_SAMPLE), {"most": most})
        return cursor.fetchall()


def drawn(
    sample: Sequence[SampledEmbedding],
    coloured_by: str,
    question: Vectors | None = None,
) -> EmbeddingMap | None:
    """Return the map of a sample, with the question in it; None without at least three points."""
    if len(sample) < 3:
        return None
    vectors = _normalised(np.stack([one.embedding for one in sample]))
    centre = vectors.mean(axis=0)
    axes, kept = _principal_axes(vectors - centre)
    places = (vectors - centre) @ axes
    unit = None if question is None else _normalised(question[None, :])[0]
    asked = None if unit is None else (unit - centre) @ axes
    spots = places if asked is None else np.vstack([places, asked])
    spots = _on_page(spots)
    values = [str(getattr(one, coloured_by)) for one in sample]
    counts = Counter(values).most_common()
    colours = {value: place for place, (value, _) in enumerate(counts[:COLOURS])}
    rest = sum(count for _, count in counts[COLOURS:])
    titles = [one.title or one.document_key or str(one.chunk_id) for one in sample]
    return EmbeddingMap(
        points=[
            Point(one.chunk_id, title, float(x), float(y), colours.get(value, COLOURS))
            for one, title, value, (x, y) in zip(sample, titles, values, spots, strict=False)
        ],
        legend=[*counts[:COLOURS], *([("", rest)] if rest else [])],
        kept=kept,
        question=None if asked is None else (float(spots[-1][0]), float(spots[-1][1])),
        nearest=[] if unit is None else _nearest(sample, titles, vectors @ unit),
    )


def _normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


def _principal_axes(centred: Vectors) -> tuple[Vectors, float]:
    """Return the two axes of most variance, and their share of it (randomised subspace iteration).

    The start is the same for each call, and each axis points to its largest component, so the same
    sample gives the same map.
    """
    dimensions = centred.shape[1]
    width = min(dimensions, 2 + _EXTRA)
    basis = np.random.default_rng(0).normal(size=(dimensions, width)).astype(np.float32)
    for _ in range(_POWER_STEPS):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    _, strengths, rotation = np.linalg.svd(centred @ basis, full_matrices=False)
    axes = (basis @ rotation.T)[:, :2]
    if axes.shape[1] < 2:
        axes = np.hstack([axes, np.zeros((dimensions, 2 - axes.shape[1]), np.float32)])
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    whole = float((centred**2).sum())
    kept = float((strengths[:2] ** 2).sum()) / whole if whole else 0.0
    return axes * np.where(signs == 0, 1, signs), kept


def _on_page(places: Vectors) -> Vectors:
    """Scale places to the page; a few that are far out are put on its edge."""
    low, high = np.percentile(places, [0.5, 99.5], axis=0)
    span = np.where(high > low, high - low, 1)
    scaled = np.clip((places - low) / span, 0, 1)
    page = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN], np.float32)
    on_page: Vectors = np.round(scaled * page + MARGIN, 1)
    return on_page


def _nearest(
    sample: Sequence[SampledEmbedding], titles: Sequence[str], similarities: Vectors
) -> list[Near]:
    best = np.argsort(-similarities, kind="stable")[:_NEAREST]
    return [
        Near(sample[place].chunk_id, titles[place], float(similarities[place])) for place in best
    ]
