"""The command tune: arguments and output; `evaluation.tuning` does the work."""

from typing import Annotated

import typer

from second_brain.cli.corpus import configured_embedder, refuse_other_embedder
from second_brain.cli.options import EmbedderOption, JsonOption, MajorOption, SchemaOption
from second_brain.cli.output import print_json
from second_brain.cli.settings import describe
from second_brain.cli.target import opened, resolve_dsn
from second_brain.evaluation import metrics, model_weight, tuning
from second_brain.evaluation.collection import CollectionError, Questions, embed_questions
from second_brain.evaluation.commands.output import (
    print_fields,
    print_model_weight,
    print_tuning,
    progress,
    tuning_json,
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
from second_brain.evaluation.live import read_questions
from second_brain.evaluation.runs import Searcher
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database
from second_brain.services.write import KnowledgeWriter

_TUNE_EXAMPLES = """\b
Examples:
  second-brain corpus tune
  second-brain corpus tune --collection support --apply
  second-brain corpus tune questions.tsv --collection support --apply
  second-brain corpus tune scifact
  second-brain corpus tune scifact --qrels scifact/qrels/dev.tsv --max-queries 500
  second-brain corpus tune scifact --apply --collection support
  second-brain corpus tune --model --apply
"""

_MAX_TUNED = 200

app = typer.Typer(rich_markup_mode=None)


@app.command("tune", epilog=_TUNE_EXAMPLES)
def _tune(
    directory: FolderArgument = None,
    qrels: QrelsOption = None,
    doc_embeddings: DocEmbeddingsOption = None,
    query_embeddings: QueryEmbeddingsOption = None,
    embedder_name: EmbedderOption = "wordllama",
    language: LanguageOption = None,
    max_queries: Annotated[
        int, typer.Option(min=2, help="Use a random sample of at most this many queries.")
    ] = _MAX_TUNED,
    seed: SeedOption = 0,
    dsn: ServerOption = None,
    postgres_major: MajorOption = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Store the best fusion and weights in your database, if their gain is above its "
            f"standard error, over at least {tuning.FEWEST} questions.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --apply: store them all the same."),
    ] = False,
    fields: Annotated[
        bool,
        typer.Option("--fields", help="Try weights of heading and title instead; stores nothing."),
    ] = False,
    of_model: Annotated[
        bool,
        typer.Option(
            "--model",
            help="Measure the weight of the embedding model instead, on judged questions or, with "
            f"fewer than {tuning.FEWEST}, on titles.",
        ),
    ] = False,
    collection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Collection that the questions are asked in, and to store the settings for; "
            "without it, all that have no settings of their own.",
        ),
    ] = None,
    kind: KindOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="With a folder: database for --apply; the default is that of `second-brain "
            "search`."
        ),
    ] = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Find the best fusion and weights for a collection, and store them.

    Without a folder, the questions are those judged in the database or in a file, and they are
    searched in the corpus itself. With a folder, its documents are loaded into a scratch database
    that is dropped at the end.

    Every query runs, for ten hits, with the settings in use (with a folder: the defaults), with
    each leg first, and with each share of the legs in steps of 0.1; with the best of them, pairs of
    k1 and b of BM25 are tried, which count if they gain twice their standard error. The output has
    the gain of the best over the settings in use in nDCG@10, its standard error, and the queries
    that move.

    With --apply, every search whose caller gives no fusion uses them. `second-brain corpus
    settings` shows and removes them.
    """
    if (force and not apply) or (fields and (apply or of_model)):
        raise typer.BadParameter("--force needs --apply; --fields excludes it, and --model")
    directory, file = told_apart(directory)
    folder = Folder(directory, qrels, doc_embeddings, query_embeddings, language, postgres_major)
    of_corpus = {"--questions": kind, "--fields": fields or None, "--model": of_model or None}
    folder.refuse_other_options(of_corpus, {"--target": target})
    if directory is not None and not apply:
        refuse("needs --apply", {"--collection": collection, "--target": target})
    applied_to = resolve_dsn(target) if apply and directory is not None else None
    corpus = Corpus(collection, kind, schema, file)
    if of_model:
        _tune_model(corpus, dsn, embedder_name, (max_queries, seed), apply, force, as_json=as_json)
        return
    with asked_questions(folder, corpus, dsn, embedder_name, (max_queries, seed), least=2) as asked:
        if fields:
            gains = tuning.try_fields(asked.searcher, asked.questions, collection or "")
            print_fields(gains, collection or "", as_json=as_json)
            return
        constants = len(asked.questions.queries) * len(tuning.BM25)
        with progress("Searching", tuning.searches(asked.questions) + constants) as advance:
            found = tuning.tune(asked.searcher.answer, asked.questions, advance=advance)
            name = collection if directory is None else None
            found = tuning.try_constants(asked.searcher, found, name or "", advance)
        chosen = (found.forced if force else found.storable) if apply else None
        stored = None
        if chosen is not None and applied_to is None:
            stored = tuning.store(asked.writer, collection or "", chosen, asked.questions)
    if chosen is not None and applied_to is not None:
        with connect(applied_to, autocommit=True) as connection:
            writer = KnowledgeWriter(connection, schema=schema)
            stored = tuning.store(writer, collection or "", chosen, asked.questions)
    if as_json:
        applied = {"stored": stored and stored.arguments()} if apply else {}
        print_json(tuning_json(found) | applied)
        return
    baseline = "the settings in use" if directory is None else "the defaults"
    print_tuning(found, baseline)
    if stored is not None:
        typer.echo(f"Stored for {describe(stored)}")
    elif apply and found.forced is None:
        typer.echo(f"Not stored: {baseline} are the best.")
    elif apply and not found.is_better:
        typer.echo(
            f"Not stored: no setting is better than {baseline} by more than the standard error. "
            "--force stores the best one all the same."
        )
    elif apply:
        typer.echo("Not stored: too few questions. --force stores the best one all the same.")


def _tune_model(
    corpus: Corpus,
    dsn: str | None,
    embedder_name: str,
    sample: tuple[int, int],
    apply: bool,
    force: bool,
    *,
    as_json: bool,
) -> None:
    """Measure the weight of the model, and store it."""
    metrics.require_library()
    with opened(dsn, corpus.schema) as database:
        embedder = configured_embedder(embedder_name)
        refuse_other_embedder(database, embedder)
        judged = _judged(database, corpus, *sample)
        if judged is None:
            asked = model_weight.titles(database, embedder, corpus.collection)
        else:
            searcher = Searcher(database, embed_questions(judged, embedder), corpus.collection)
            asked = judged, searcher, model_weight.as_stored
        questions, searcher, around = asked
        with progress("Searching", len(questions.queries)) as advance:
            found = model_weight.measure_weight(
                searcher, questions, embedder.model, around, advance
            )
        is_stored = apply and found.best != found.in_use and (force or found.is_storable)
        if is_stored:
            model_weight.store_weight(database, found.model, found.best)
    print_model_weight(found, is_stored=is_stored if apply else None, as_json=as_json)


def _judged(database: Database, corpus: Corpus, most: int, seed: int) -> Questions | None:
    """Return the judged questions, None where they are too few and no kind or file is given."""
    try:
        found = read_questions(database, corpus.collection, corpus.kind, corpus.file)
    except CollectionError:
        if corpus.kind is not None or corpus.file is not None:
            raise
        return None
    enough = corpus.kind is not None or corpus.file is not None
    enough = enough or len(found.queries) >= tuning.FEWEST
    return found.sample(most, seed) if enough else None
