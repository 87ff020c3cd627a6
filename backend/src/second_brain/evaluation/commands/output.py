"""What eval and tune print, for a test collection and for the corpus: tables, lines, and JSON."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table
from rich.text import Text

from second_brain.cli.output import new_progress, print_json
from second_brain.cli.tables import new_console, new_table, printable
from second_brain.evaluation import metrics
from second_brain.evaluation.collection import Query, Questions
from second_brain.evaluation.comparison import CONDENSED, RERANK, Comparison, Source
from second_brain.evaluation.embedding_models import ModelComparison
from second_brain.evaluation.metrics import NDCG, Difference
from second_brain.evaluation.model_weight import ModelWeight
from second_brain.evaluation.runs import DEFAULT, RERANKED
from second_brain.evaluation.tuning import FEWEST, TEXT, VECTOR, FieldGains, Tuning

_MOST_MOVED = 5


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal; yields what is called after each step."""
    with new_progress(MofNCompleteColumn()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


def print_comparison(found: Comparison, source: Source, *, as_json: bool) -> None:
    """Print the figures of each mode, the gains, and the questions that move most."""
    if as_json:
        print_json(_comparison_json(found, source))
        return
    console = new_console()
    _print_heading(console, found.collection)
    lines = [
        f"{source.embedding_model} ({source.dimensions} dimensions), PostgreSQL {source.postgres}, "
        f"{found.collection.depth} hits, one for each document"
    ]
    for name in ("hybrid", "given"):
        if name in found.modes:
            given = found.modes[name].settings.arguments()
            lines.append(f"{name}: {_python(given) if given else 'default arguments'}")
    if source.reranker is not None:
        lines.append(
            f"{RERANK}: the first {RERANKED} hits of {found.reference}, ordered by "
            f"{source.reranker}"
        )
    for line in lines:
        _print_note(console, line)
    measures = ("condensed" if name == CONDENSED else name for name in found.measures)
    table = new_table("", right=(*measures, "judged@10", "p50 ms", "p95 ms", "empty"))
    for row in found.rows():
        table.add_row(
            Text(printable(row.mode.name)),
            *(f"{mean:.3f}" for mean in row.means.values()),
            f"{row.judged:.0%}",
            *(f"{latency:.1f}" for latency in (row.p50, row.p95)),
            str(row.empty),
        )
    _print_table(console, table)
    for ours, theirs, gain in found.verdicts():
        _print_difference(console, f"{printable(ours)} against {printable(theirs)}", gain)
    _print_test(console)
    _print_note(
        console,
        "condensed: nDCG@10 without the documents that nobody has judged; judged@10: the share of "
        "judged documents among the first ten",
    )
    best = found.best_other()
    if best is None:
        return
    _print_moved(console, best, found.reference, found.moved(best, _MOST_MOVED))


def print_gate(
    failures: Sequence[str], fell: Sequence[tuple[str, float, float]], console: Console
) -> None:
    """Print the questions whose nDCG@10 fell, and why the run fails."""
    if fell:
        table = new_table("fell", right=("before", "now"))
        for question, before, now in fell:
            table.add_row(Text(printable(question)), f"{before:.3f}", f"{now:.3f}")
        _print_table(console, table)
    for failure in failures:
        console.print(f"Failed: {failure}", highlight=False, markup=False)


def print_models(found: ModelComparison, *, as_json: bool) -> None:
    """Print the measures of two embedding models."""
    if as_json:
        print_json(_models_json(found))
        return
    console = new_console()
    _print_heading(console, found.collection)
    chunks = (
        f"all {found.chunks:,} embedded chunks"
        if found.is_whole
        else f"{found.chunks:,} of {found.chunk_count:,} embedded chunks: those of judged and of "
        "found documents, and others by chance"
    )
    _print_note(console, f"exact vector search over {chunks}")
    table = new_table("", right=found.values[found.stored_model])
    for model, values in found.values.items():
        table.add_row(Text(model), *(f"{found.mean(model, name):.3f}" for name in values))
    _print_table(console, table)
    _print_difference(console, f"{found.other_model} against {found.stored_model}", found.gain)
    _print_test(console)


def print_tuning(found: Tuning, baseline: str) -> None:
    """Print the result of tuning against `baseline`."""
    console = new_console()
    _print_heading(console, found.collection)
    table = new_table("", right=(NDCG,))
    rows = {
        "vector leg first": VECTOR,
        "text leg first": TEXT,
        baseline.removeprefix("the "): DEFAULT,
    }
    for name, settings in rows.items():
        table.add_row(name, f"{found.mean(settings):.3f}")
    table.add_row("best", f"{found.mean_of_best:.3f}")
    _print_table(console, table)
    if found.forced is not None:
        given = found.best.arguments()
        # Not by rich, which would wrap the lines: users copy the arguments.
        typer.echo(
            f"Best against {baseline}: {found.gain:+.3f} {NDCG}, standard error {found.error:.3f}"
        )
        typer.echo(f"  Python:  {_python(given)}")
        sql = ", ".join(f"{name} => {_sql(value)}" for name, value in given.items())
        typer.echo(f"  SQL:     {sql}")
        if found.constants is not None:
            k1, b = found.constants
            typer.echo(f"  with k1 {k1:g} and b {b:g} of BM25, which are stored, not given")
        _print_moved(console, "best", baseline, found.moved(_MOST_MOVED))
    if found.forced is not None and not found.is_better:
        typer.echo(f"The gain is not above its standard error: keep {baseline}.")
    if not found.has_enough:
        typer.echo(
            f"{len(found.collection.queries)} of {FEWEST} judged questions: a fit to so few gains "
            "nothing on other questions. Judge more."
        )


def print_fields(found: FieldGains, name: str, *, as_json: bool) -> None:
    """Print what heading and title gain by each weight, and the command that stores the best."""
    if as_json:
        print_json(
            {
                **_collection_json(found.collection),
                "measure": NDCG,
                "in_use": found.in_use,
                "gains": {
                    weight: {"gain": gain, "standard_error": error}
                    for weight, (gain, error) in found.gains.items()
                },
                "best": found.best,
            }
        )
        return
    console = new_console()
    _print_heading(console, found.collection)
    table = new_table("heading and title count", right=(NDCG, "gain", "standard error"))
    table.add_row("as in use", f"{found.in_use:.3f}")
    for weight, (gain, error) in found.gains.items():
        table.add_row(str(weight), f"{found.in_use + gain:.3f}", f"{gain:+.3f}", f"{error:.3f}")
    _print_table(console, table)
    if found.best is None:
        typer.echo(
            f"Keep what is in use: no gain above its standard error over {FEWEST} questions."
        )
        return
    where = f" --collection '{name}'" if name else ""
    typer.echo(
        f"second-brain corpus settings fields --heading-weight {found.best} "
        f"--title-weight {found.best}{where}"
    )


def print_model_weight(found: ModelWeight, *, is_stored: bool | None, as_json: bool) -> None:
    """Print the weights of a model and what the best one gains; `is_stored` None: not asked for."""
    gain, error = found.gain
    if as_json:
        print_json(
            {
                **_collection_json(found.questions),
                "model": found.model,
                "measure": NDCG,
                "weights": {f"{one:g}": found.mean(one) for one in found.values},
                "in_use": found.in_use,
                "best": found.best,
                "gain": gain,
                "standard_error": error,
                "is_storable": found.is_storable,
                **({} if is_stored is None else {"stored": is_stored}),
            }
        )
        return
    console = new_console()
    _print_heading(console, found.questions)
    table = new_table(f"weight of {printable(found.model)}", right=(NDCG,))
    for weight in found.values:
        note = " (in use)" if weight == found.in_use else ""
        table.add_row(f"{weight:g}{note}", f"{found.mean(weight):.3f}")
    _print_table(console, table)
    if found.best == found.in_use:
        typer.echo("Keep the weight in use: it is the best.")
        return
    typer.echo(
        f"{found.best:g} against {found.in_use:g}: {gain:+.3f} {NDCG}, standard error {error:.3f}"
    )
    if is_stored:
        typer.echo(f"Stored for {found.model}: all searches of its embeddings use it.")
    elif not found.is_storable:
        typer.echo(
            f"Keep the weight in use: no gain above its standard error over {FEWEST} questions."
        )
    elif is_stored is None:
        typer.echo("--apply stores it.")


def _print_moved(
    console: Console, ours: str, theirs: str, moved: Sequence[Sequence[tuple[Query, float]]]
) -> None:
    for title, changes in zip(("gains", "loses"), moved, strict=True):
        if changes:
            console.print()
            heading = f"{printable(ours)} {title} most against {theirs}:"
            console.print(heading, style="bold", markup=False)
        for query, change in changes:
            console.print(
                f"  {change:+.3f}  {printable(query.text)}", highlight=False, markup=False
            )


def _print_note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False)


def _print_heading(console: Console, collection: Questions) -> None:
    console.print(
        f"{collection.name}: {collection.document_count:,} documents, "
        f"{len(collection.queries):,} queries",
        style="bold",
        highlight=False,
        markup=False,
    )
    for remark in collection.remarks:
        _print_note(console, f"{remark}.")


def _print_difference(console: Console, name: str, difference: Difference) -> None:
    kind = "gain" if difference.mean > 0 else "loss"
    verdict = f"significant {kind}" if difference.significant else "not significant"
    console.print(
        f"{name}: {difference.mean:+.3f} {NDCG}, p = {difference.p_value:.4f}, {verdict}",
        highlight=False,
    )


def _print_test(console: Console) -> None:
    _print_note(
        console,
        f"{metrics.TEST}; {metrics.PERMUTATIONS:,} random permutations, or all if there are "
        f"fewer; significant: p < {metrics.SIGNIFICANT}",
    )


def _print_table(console: Console, table: Table) -> None:
    console.print()
    console.print(table)
    console.print()


def _comparison_json(found: Comparison, source: Source) -> dict[str, Any]:
    depth = found.collection.depth
    return {
        **_collection_json(found.collection),
        "fingerprint": found.collection.fingerprint,
        **source._asdict(),
        "match_count": depth,
        "reference": found.reference,
        "modes": {
            row.mode.name: {
                "leg": row.mode.leg,
                "arguments": row.mode.settings.arguments(row.mode.leg),
                **row.means,
                "judged@10": row.judged,
                "p50_ms": row.p50,
                "p95_ms": row.p95,
                "empty_answers": row.empty,
                "gain": row.gain and _difference_json(row.gain),
            }
            for row in found.rows()
        },
        "test": metrics.TEST,
        "relevant_found_by": {f"first_{count}": found.found_by(count) for count in (10, depth)},
        "per_query": [
            {
                "query": query.id,
                "question": query.text,
                **{name: found.values[name][NDCG][query.id] for name in found.modes},
            }
            for query in found.collection.queries
        ],
    }


def _models_json(found: ModelComparison) -> dict[str, Any]:
    return {
        **_collection_json(found.collection),
        "chunks": found.chunks,
        "embedded_chunks": found.chunk_count,
        "models": {
            model: {name: found.mean(model, name) for name in values}
            for model, values in found.values.items()
        },
        "gain": _difference_json(found.gain),
        "test": metrics.TEST,
    }


def tuning_json(found: Tuning) -> dict[str, Any]:
    """Return the result of tuning as JSON values."""
    gained, lost = (
        [{"question": query.text, "change": change} for query, change in changes]
        for changes in found.moved(len(found.collection.queries))
    )
    return {
        **_collection_json(found.collection),
        "measure": NDCG,
        "in_use": found.mean(DEFAULT),
        "vector": found.mean(VECTOR),
        "text": found.mean(TEXT),
        "best": {
            "arguments": found.best.arguments(),
            **(
                {}
                if found.constants is None
                else dict(zip(("k1", "b"), found.constants, strict=True))
            ),
            NDCG: found.mean_of_best,
        },
        "gain": found.gain,
        "standard_error": found.error,
        "is_better": found.is_better,
        "has_enough": found.has_enough,
        "gains": gained,
        "loses": lost,
        "grid": [
            {"arguments": settings.arguments(), NDCG: found.mean(settings)}
            for settings in found.values
        ],
    }


def _collection_json(collection: Questions) -> dict[str, Any]:
    return {
        "collection": collection.name,
        "documents": collection.document_count,
        "queries": len(collection.queries),
        "remarks": list(collection.remarks),
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "measure": NDCG,
        **asdict(difference),
        "significant": difference.significant,
    }


def _python(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _sql(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)
