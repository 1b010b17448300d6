"""How good retrieval is, on labelled queries: recall@k and nDCG@k, for each mode.

    python -m knowledge.evaluate

nDCG: Järvelin and Kekäläinen, ACM TOIS 2002, with gains 2^grade - 1 and log2 discounts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from atrex.errors import AtrexError, UsageError
from atrex.records import Record
from knowledge.index import Index, Mode
from knowledge.item import ROOT, Item, Kind, Text, load_items

Split = Literal["dev", "test"]
SPLITS: tuple[Split, ...] = ("dev", "test")
MODES: tuple[Mode, ...] = ("lexical", "vector", "hybrid")


class Query(Record):
    """What an engineer would type, and the items that answer it."""

    split: Split
    """`dev` may be used to tune retrieval, `test` may not."""
    text: Text
    operator: str | None = None
    dsl: str | None = None
    architecture: str | None = None
    kind: Kind | None = "note"
    relevant: Annotated[dict[str, Literal[1, 2]], Field(min_length=1)]
    """Item id -> grade: 2 answers the query, 1 helps."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over queries; both in 0..1, higher is better."""

    recall: float
    ndcg: float
    count: int


def load_queries(items: Sequence[Item], path: Path = ROOT / "queries.yaml") -> tuple[Query, ...]:
    """Read labelled queries; raises UsageError for a malformed file or a label that no item has."""
    try:
        queries = TypeAdapter(tuple[Query, ...]).validate_python(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: query {field}: {first['msg']}; correct it") from error
    known = {item.id for item in items}
    for query in queries:
        if unknown := query.relevant.keys() - known:
            raise UsageError(
                f"{path}: query {query.text!r}: no item {min(unknown)!r}; correct the id in `relevant`"
            )
    return queries


def evaluate(index: Index, queries: Sequence[Query], k: int = 5) -> Quality:
    """Search for each query and average recall@k and nDCG@k; raises UsageError without queries."""
    if not queries:
        raise UsageError("there are no queries to evaluate")
    recalls, ndcgs = [], []
    for query in queries:
        hits = index.search(
            query.text,
            operator=query.operator,
            dsl=query.dsl,
            architecture=query.architecture,
            kind=query.kind,
            k=k,
        )
        found = [hit.item.id for hit in hits]
        recalls.append(recall(found, query.relevant, k))
        ndcgs.append(ndcg(found, query.relevant, k))
    return Quality(sum(recalls) / len(recalls), sum(ndcgs) / len(ndcgs), len(queries))


def recall(found: Sequence[str], relevant: Mapping[str, int], k: int) -> float:
    """Share of the relevant items among the first k, out of as many as k places can hold."""
    return len(relevant.keys() & set(found[:k])) / min(k, len(relevant))


def ndcg(found: Sequence[str], relevant: Mapping[str, int], k: int) -> float:
    """Discounted gain of the first k over that of the best possible order."""
    best = sorted(relevant.values(), reverse=True)
    return _discounted([relevant.get(name, 0) for name in found[:k]]) / _discounted(best[:k])


def _discounted(grades: Sequence[int]) -> float:
    return sum((2.0**grade - 1) / math.log2(place + 2) for place, grade in enumerate(grades))


def main() -> int:
    """Print one line for each mode and split; exit code as the errors say."""
    try:
        items = load_items()
        queries = load_queries(items)
        for mode in MODES:
            index = Index(items, mode=mode)
            for split in SPLITS:
                quality = evaluate(index, [query for query in queries if query.split == split])
                print(
                    f"{mode:8} {split:5} n={quality.count}  "
                    f"recall@5 {quality.recall:.3f}  nDCG@5 {quality.ndcg:.3f}"
                )
            if index.notice:
                print(f"note: {index.notice}")
    except AtrexError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
