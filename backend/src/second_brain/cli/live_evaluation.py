"""The commands eval and tune without a folder: the judgments of a database, and its own corpus."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from second_brain.cli.corpus import configured_embedder, refuse_other_embedder
from second_brain.cli.evaluation_output import (
    IN_USE,
    difference_json,
    print_difference,
    print_heading,
    print_test,
    print_tuning,
    progress,
    tuning_json,
)
from second_brain.cli.output import print_json
from second_brain.cli.settings import describe
from second_brain.cli.tables import new_console, number, printable
from second_brain.cli.target import opened
from second_brain.evaluation import live, metrics, runs, tuning
from second_brain.evaluation.collection import Questions
from second_brain.evaluation.embedding_models import MEASURES, ModelComparison, compare_models
from second_brain.evaluation.live import Comparison, CorpusSearcher, Kind, Mode
from second_brain.models import Embedder
from second_brain.models.rerankers import Reranker
from second_brain.services.install import Database
from second_brain.services.write import KnowledgeWriter

_MOST_MOVED = 5


@contextmanager
def judged(
    dsn: str | None,
    schema: str,
    collection: str | None,
    kind: Kind | None,
    embedder_name: str,
    sample: tuple[int | None, int],
) -> Iterator[tuple[Database, Questions, Embedder]]:
    """Open a database, read its questions, and load the embedder of its chunks.

    `sample` is the largest number of questions, and a seed.
    """
    metrics.require_library()
    with opened(dsn, schema) as database:
        questions = live.read_questions(database, collection, kind)
        largest, seed = sample
        if largest is not None:
            questions = questions.sample(largest, seed)
        embedder = configured_embedder(embedder_name)
        refuse_other_embedder(database, embedder)
        yield database, questions, embedder


def evaluate(
    database: Database,
    questions: Questions,
    embedder: Embedder,
    *,
    collection: str | None,
    compared: Sequence[Mode],
    reranker: tuple[str, Reranker] | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure the modes of the corpus, or those that are compared, and print the result.

    `reranker` has a name for the output and the function.
    """
    writer = KnowledgeWriter(database.connection, schema=database.install.schema)
    modes = compared or live.modes_of(writer.settings(), collection)
    searcher = CorpusSearcher(database, live.embed_questions(questions, embedder), collection)
    reranked = (
        None
        if reranker is None
        else partial(searcher.answer, depth=live.DEPTH, reranker=reranker[1])
    )
    searches = len(questions.queries) * (len(modes) + (reranked is not None))
    with progress("Searching", searches) as advance:
        found = live.measure(
            searcher.answer,
            questions,
            modes,
            reference=compared[0].name if compared else None,
            reranked=reranked,
            seed=seed,
            advance=advance,
        )
    if as_json:
        print_json(_comparison_json(found, embedder.model, reranker and reranker[0]))
    else:
        _print_comparison(found, embedder, reranker and reranker[0])


def evaluate_models(
    database: Database,
    questions: Questions,
    embedder: Embedder,
    other_name: str,
    *,
    collection: str | None,
    most: int,
    seed: int,
    as_json: bool,
) -> None:
    """Compare the stored embeddings with those of another model, and print the result."""
    other = configured_embedder(other_name)
    typer.echo(f"Embedding at most {number(most, 'chunk')} with {other.model} ...", err=True)
    found = compare_models(
        database, questions, embedder, other, collection=collection, most=most, seed=seed
    )
    if as_json:
        print_json(_models_json(found))
    else:
        _print_models(found)


def tune(
    database: Database,
    questions: Questions,
    embedder: Embedder,
    *,
    collection: str | None,
    seed: int,
    is_applied: bool,
    is_forced: bool,
    as_json: bool,
) -> None:
    """Tune fusion and weights of the corpus, store them if asked to, and print the result."""
    settings = tuning.grid(storable=True)
    searcher = CorpusSearcher(database, live.embed_questions(questions, embedder), collection)
    with progress("Searching", tuning.searches(questions, settings)) as advance:
        found = tuning.tune(searcher.answer, questions, settings, seed=seed, advance=advance)
    chosen = found.forced if is_forced else found.storable
    stored = None
    if is_applied and chosen is not None:
        writer = KnowledgeWriter(database.connection, schema=database.install.schema)
        stored = tuning.store(writer, collection or "", chosen)
    if as_json:
        applied = {"stored": stored and stored.arguments()} if is_applied else {}
        print_json(tuning_json(found) | applied)
        return
    print_tuning(found, IN_USE)
    if stored is not None:
        typer.echo(f"Stored for {describe(stored)}")
    elif is_applied:
        typer.echo(
            "Not stored: the settings in use are the best."
            if found.forced is None
            else "Not stored: no setting is significantly better than the settings in use on "
            "questions that did not choose it. --force stores the best one all the same."
        )


def _print_comparison(found: Comparison, embedder: Embedder, reranker: str | None) -> None:
    console = new_console()
    print_heading(console, found.collection)
    console.print(
        f"{embedder.model} ({embedder.dimensions} dimensions), {live.DEPTH} hits, one for each "
        "document",
        style="dim",
        highlight=False,
        markup=False,
    )
    if reranker is not None:
        console.print(
            f"{live.RERANK}: the first {runs.RERANKED} hits of {found.reference}, ordered by "
            f"{reranker}",
            style="dim",
            highlight=False,
            markup=False,
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for name in (*live.MEASURES[:3], "condensed", "judged@10", "p50 ms", "p95 ms", "empty"):
        table.add_column(name, justify="right")
    for mode in found.searches:
        table.add_row(
            Text(printable(mode)),
            *(f"{found.mean(mode, name):.3f}" for name in live.MEASURES),
            f"{found.judged(mode):.0%}",
            *(f"{found.latency(mode, share):.1f}" for share in (50, 95)),
            str(found.empty(mode)),
        )
    console.print()
    console.print(table)
    console.print()
    for mode, gain in found.gains.items():
        print_difference(console, f"{printable(mode)} against {found.reference}", gain)
    print_test(console)
    console.print(
        "condensed: nDCG@10 without the documents that nobody has judged; judged@10: the share of "
        "judged documents among the first ten",
        style="dim",
        highlight=False,
    )
    _print_moved(console, found)


def _print_moved(console: Console, found: Comparison) -> None:
    """Print the questions that the best other mode moves most."""
    others = [mode for mode in found.gains if mode not in ("vector", "text")] or [*found.gains]
    if not others:
        return
    best = max(others, key=lambda mode: found.mean(mode, live.MEASURES[0]))
    gained, lost = found.moved(best, _MOST_MOVED)
    for title, changes in (("gains most", gained), ("loses most", lost)):
        if changes:
            console.print()
            console.print(
                f"{printable(best)} {title} against {found.reference}:", style="bold", markup=False
            )
        for query, change in changes:
            console.print(
                f"  {change:+.3f}  {printable(query.text)}", highlight=False, markup=False
            )


def _comparison_json(found: Comparison, model: str, reranker: str | None) -> dict[str, Any]:
    collection = found.collection
    return {
        "collection": collection.name,
        "documents": collection.document_count,
        "queries": len(collection.queries),
        "remarks": list(collection.remarks),
        "embedding_model": model,
        "reranker": reranker,
        "match_count": live.DEPTH,
        "reference": found.reference,
        "modes": {
            name: {
                "leg": mode.leg,
                "arguments": mode.settings.arguments(mode.leg),
                **{measure: found.mean(name, measure) for measure in live.MEASURES},
                "judged@10": found.judged(name),
                "p50_ms": found.latency(name, 50),
                "p95_ms": found.latency(name, 95),
                "empty_answers": found.empty(name),
                "gain": difference_json(found.gains[name]) if name in found.gains else None,
            }
            for name, mode in found.modes.items()
        },
        "test": metrics.TEST,
        "per_query": [
            {
                "question": query.text,
                **{name: found.values[name][live.MEASURES[0]][query.id] for name in found.modes},
            }
            for query in collection.queries
        ],
    }


def _print_models(found: ModelComparison) -> None:
    console = new_console()
    print_heading(console, found.collection)
    chunks = (
        f"all {found.chunks:,} embedded chunks"
        if found.is_whole
        else f"{found.chunks:,} of {found.chunk_count:,} embedded chunks: those of judged and of "
        "found documents, and others by chance"
    )
    console.print(f"exact vector search over {chunks}", style="dim", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in MEASURES:
        table.add_column(name, justify="right")
    for model in (found.stored_model, found.other_model):
        table.add_row(Text(model), *(f"{found.mean(model, name):.3f}" for name in MEASURES))
    console.print()
    console.print(table)
    console.print()
    print_difference(console, f"{found.other_model} against {found.stored_model}", found.gain)
    print_test(console)


def _models_json(found: ModelComparison) -> dict[str, Any]:
    return {
        "collection": found.collection.name,
        "documents": found.collection.document_count,
        "queries": len(found.collection.queries),
        "remarks": list(found.collection.remarks),
        "chunks": found.chunks,
        "embedded_chunks": found.chunk_count,
        "models": {
            model: {name: found.mean(model, name) for name in MEASURES} for model in found.values
        },
        "gain": {"measure": MEASURES[0], **difference_json(found.gain)},
        "test": metrics.TEST,
    }
