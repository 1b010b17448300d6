"""`atrex knowledge search` and `atrex knowledge eval`."""

from __future__ import annotations

from typing import get_args

from rich.table import Table

from atrex.commands.common import console_for_output, print_json
from atrex.problem import resolve_operator
from knowledge.evaluate import evaluate as measure_quality
from knowledge.evaluate import load_queries
from knowledge.evidence import summarise
from knowledge.index import Index, Mode
from knowledge.item import load_items


def search(
    query: str, operator: str | None, dsl: str | None, architecture: str | None, k: int, *, as_json: bool
) -> None:
    """Print the best items for a query, with what was measured with them here."""
    index = Index()
    wanted = resolve_operator(operator) if operator else None
    hits = index.search(query, operator=wanted, dsl=dsl, architecture=architecture, k=k)
    if as_json:
        rows = [
            {"id": hit.item.id, "title": hit.item.title, "score": hit.score, "ranks": dict(hit.ranks)}
            for hit in hits
        ]
        print_json({"mode": index.mode, "notice": index.notice, "hits": rows})
        return
    console = console_for_output()
    if index.notice:
        console.print(index.notice, style="yellow")
    table = Table("item", "title", "ranks", "evidence", title=f"{len(hits)} items ({index.mode})")
    for hit in hits:
        ranks = ", ".join(f"{channel} {rank}" for channel, rank in hit.ranks.items())
        table.add_row(hit.item.id, hit.item.title, ranks, summarise(hit.evidence))
    console.print(table)


def evaluate(*, as_json: bool) -> None:
    """Recall and nDCG of each retrieval mode on the labelled queries, by split."""
    items = load_items()
    queries = load_queries(items)
    rows = list[dict[str, object]]()
    for mode in get_args(Mode):
        index = Index(items, mode=mode)
        for split in ("dev", "test"):
            chosen = [query for query in queries if query.split == split]
            quality = measure_quality(index, chosen)
            rows.append(
                {
                    "mode": mode,
                    "split": split,
                    "queries": len(chosen),
                    "recall@5": quality.recall,
                    "ndcg@5": quality.ndcg,
                }
            )
    if as_json:
        print_json(list(rows))
        return
    table = Table("mode", "split", "queries", "recall@5", "nDCG@5")
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    console_for_output().print(table)
