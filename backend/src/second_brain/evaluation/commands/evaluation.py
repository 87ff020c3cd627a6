"""The command eval: arguments and output; the package `evaluation` does the work."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from second_brain.cli.corpus import configured_embedder
from second_brain.cli.options import EmbedderOption, JsonOption, MajorOption, SchemaOption
from second_brain.cli.tables import new_console, number
from second_brain.evaluation import report
from second_brain.evaluation.collection import Questions
from second_brain.evaluation.commands.output import (
    print_comparison,
    print_gate,
    print_models,
    progress,
)
from second_brain.evaluation.commands.questions import (
    Corpus,
    DocEmbeddingsOption,
    Folder,
    FolderArgument,
    KindOption,
    LanguageOption,
    QrelsOption,
    QueryEmbeddingsOption,
    SeedOption,
    ServerOption,
    asked_questions,
    refuse,
    told_apart,
)
from second_brain.evaluation.comparison import (
    IN_USE,
    LEGS,
    Mode,
    measure,
    measures_of,
    reference_of,
)
from second_brain.evaluation.embedding_models import MOST_CHUNKS, compare_models
from second_brain.evaluation.gate import read_baseline, verdict
from second_brain.evaluation.live import modes_of, parse_mode
from second_brain.evaluation.runs import RERANKED, Settings
from second_brain.models.rerankers import RERANKER_NAMES, load_reranker
from second_brain.services.arguments import FUSIONS
from second_brain.services.install import SCHEMA

_EVAL_EXAMPLES = """\b
Examples:
  second-brain corpus eval
  second-brain corpus eval --collection support --compare stored rrf
  second-brain corpus eval --compare rrf '{"fusion": "auto", "vector_weight": 0.7}'
  second-brain corpus eval --compare-embedder openai:text-embedding-3-small
  second-brain corpus eval --reranker cross-encoder --html report.html
  second-brain corpus eval scifact
  second-brain corpus eval scifact --doc-embeddings docs.npy --query-embeddings queries.npy
  second-brain corpus eval support --weights 0.6 0.4 --html report.html
  second-brain corpus eval support --reranker cross-encoder
  second-brain corpus eval support --json > before.json
  second-brain corpus eval support --baseline before.json --fail-under nDCG@10=.62
"""

TOLERANCE = 0.02

app = typer.Typer(rich_markup_mode=None)


@app.command("eval", epilog=_EVAL_EXAMPLES)
def _eval(
    directory: FolderArgument = None,
    qrels: QrelsOption = None,
    doc_embeddings: DocEmbeddingsOption = None,
    query_embeddings: QueryEmbeddingsOption = None,
    embedder_name: EmbedderOption = "wordllama",
    language: LanguageOption = None,
    fusion: Annotated[
        str | None, typer.Option(help=f"How hybrid fuses: {', '.join(FUSIONS)}.")
    ] = None,
    weights: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="VECTOR TEXT", help="Weights of the two legs in hybrid."),
    ] = None,
    rrf_k: Annotated[float | None, typer.Option(help="Constant of RRF in hybrid.")] = None,
    pool_size: Annotated[
        int | None,
        typer.Option(help="Candidates per leg; at least 100, the number of hits requested."),
    ] = None,
    search_mode: Annotated[str | None, typer.Option(help="websearch, simple, phrase.")] = None,
    reranker_name: Annotated[
        str | None,
        typer.Option(
            "--reranker",
            metavar="NAME",
            help=f"Also rerank the first {RERANKED} hits of hybrid; without a folder, those "
            f"of the settings in use, or of ONE: {', '.join(RERANKER_NAMES)}.",
        ),
    ] = None,
    max_queries: Annotated[
        int | None, typer.Option(min=1, help="Use a random sample of at most this many queries.")
    ] = None,
    seed: SeedOption = 0,
    collection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Without a folder: the collection that the questions are asked in; without it, "
            "all of the corpus.",
        ),
    ] = None,
    kind: KindOption = None,
    compared: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="ONE OTHER",
            help="Without a folder: only these two, the other against the one. Each is vector, "
            f"text, {', '.join(FUSIONS)}, stored, or JSON with the settings of hybrid.",
        ),
    ] = None,
    other_embedder: Annotated[
        str | None,
        typer.Option(
            "--compare-embedder",
            metavar="NAME",
            help="Without a folder: compare the stored embeddings with those of this model.",
        ),
    ] = None,
    max_chunks: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Chunks to embed for --compare-embedder; {MOST_CHUNKS:,} by default."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="A result of --json: fail if nDCG@10 fell by more than --tolerance.",
        ),
    ] = None,
    floors: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-under",
            metavar="MEASURE=VALUE",
            help="Fail if a mean is lower, such as nDCG@10=.62; can be given again.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, help=f"How far nDCG@10 may fall below --baseline; {TOLERANCE} by default."
        ),
    ] = None,
    dsn: ServerOption = None,
    schema: SchemaOption = SCHEMA,
    postgres_major: MajorOption = None,
    as_json: JsonOption = False,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write an HTML report.")] = None,
) -> None:
    """Measure search: relevance, latency, and the gain of hybrid search.

    Without a folder, the questions are those judged in the database, and every one is searched in
    the corpus itself: each leg alone, each fusion, and the stored settings; with --reranker, also
    reranked.

    With a folder, its documents are loaded into a scratch database that is dropped at the end.
    Every query runs three times: vector leg alone, text leg alone, hybrid; with --reranker, also
    reranked. Arguments that are not given have their defaults.

    With --baseline or --fail-under, the exit code is 1 if the stored settings (with a folder:
    hybrid; with --compare: the first) are worse, and the questions that fell are listed.
    """
    vector_weight, text_weight = weights or (None, None)
    settings = Settings(fusion, vector_weight, text_weight, rrf_k, pool_size, search_mode)
    reranker = None if reranker_name is None else load_reranker(reranker_name)
    modes = [parse_mode(text) for text in compared or ()]
    directory, file = told_apart(directory)
    folder = Folder(directory, qrels, doc_embeddings, query_embeddings, language, postgres_major)
    folder.refuse_other_options(
        {
            "--collection": collection,
            "--questions": kind,
            "--compare": compared,
            "--compare-embedder": other_embedder,
        }
    )
    if other_embedder is not None:
        refuse(
            "is not for --compare-embedder",
            {
                **{"--compare": compared, "--reranker": reranker_name, "--html": html},
                **{"--baseline": baseline, "--fail-under": floors},
            },
        )
    else:
        refuse("needs --compare-embedder", {"--max-chunks": max_chunks})
    if baseline is None:
        refuse("needs --baseline", {"--tolerance": tolerance})
    if html is not None and not html.parent.is_dir():
        raise typer.BadParameter(f"--html: the folder {html.parent} does not exist")
    if modes and settings != Settings():
        raise typer.BadParameter("--compare names the settings: give no others")
    corpus = Corpus(collection, kind, schema, file)
    with asked_questions(folder, corpus, dsn, embedder_name, (max_queries, seed)) as asked:
        if other_embedder is not None:
            other = configured_embedder(other_embedder)
            most = max_chunks or MOST_CHUNKS
            chunks = number(most, "chunk")
            typer.echo(f"Embedding at most {chunks} with {other.model} ...", err=True)
            compared_models = compare_models(
                asked.searcher,
                asked.questions,
                asked.source.embedding_model,
                other,
                collection=collection,
                most=most,
                seed=seed,
            )
            print_models(compared_models, as_json=as_json)
            return
        if directory is not None:
            modes = [replace(mode, settings=settings) for mode in (*LEGS, Mode("hybrid"))]
        elif settings != Settings():
            modes = [IN_USE, Mode("given", settings=settings)]
        first = modes[0].name if modes else None
        modes = modes or modes_of(asked.writer.settings(), collection)
        reference = reference_of(modes, first if directory is None else "hybrid")
        least = _floors(floors or (), asked.questions)
        before = read_baseline(baseline, asked.questions, reference)
        searches = len(asked.questions.queries) * (len(modes) + (reranker is not None))
        with progress("Searching", searches) as advance:
            found = measure(
                asked.searcher.answer,
                asked.questions,
                modes,
                reference=reference,
                reranker=reranker,
                seed=seed,
                advance=advance,
            )
        source = asked.source._replace(reranker=reranker_name)
        if html is not None:
            html.write_text(report.render(found, source, asked.searcher), "utf-8")
    print_comparison(found, source, as_json=as_json)
    failures, fell = verdict(found, least, before, TOLERANCE if tolerance is None else tolerance)
    print_gate(failures, fell, new_console(stderr=as_json))
    if failures:
        raise typer.Exit(1)


def _floors(given: Sequence[str], questions: Questions) -> dict[str, float]:
    known = measures_of(questions)
    read = [re.fullmatch(rf"({'|'.join(map(re.escape, known))})=(\d*\.?\d+)", one) for one in given]
    if None in read:
        raise typer.BadParameter(f"--fail-under takes MEASURE=VALUE; measures: {', '.join(known)}")
    return {one[1]: float(one[2]) for one in read if one is not None}
