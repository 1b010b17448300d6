"""Hybrid retrieval: vectors for meaning, BM25 for exact terms, fused by rank.

Reciprocal-rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009) adds 1 / (60 + rank) over the
channels: it needs no common scale, which cosine and BM25 do not have.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from atrex.errors import EnvironmentProblem, UsageError
from knowledge.embed import Embedder, words
from knowledge.evidence import Evidence, EvidenceLog
from knowledge.home import home
from knowledge.item import Item, Kind, load_items
from knowledge.store import Vectors, open_store

Channel = Literal["vector", "lexical"]
Mode = Literal["hybrid", "vector", "lexical"]

DEPTH = 20  # how far down each channel the fusion looks
_RANK_CONSTANT = 60
_LEAST_COSINE = 0.08  # below it, a few shared letters explain a similarity; chosen on the dev queries


@dataclass(frozen=True, slots=True)
class Hit:
    """An item that answers a query."""

    item: Item
    score: float
    """Fused score: higher is better, comparable within one search only."""
    ranks: Mapping[Channel, int]
    """Rank from 1 in each channel that found it."""
    evidence: tuple[Evidence, ...]
    """What searches learned about the item on any machine, oldest first."""


class Index:
    """Searches items; `mode` says which channels answer, `notice` what is reduced and why."""

    def __init__(
        self,
        items: Iterable[Item] | None = None,
        *,
        mode: Mode | None = None,
        directory: Path | None = None,
        evidence: EvidenceLog | None = None,
    ) -> None:
        """Index `items` (default: all of the knowledge base).

        `mode` None takes the best that is installed. `directory` (default `$ATREX_HOME/knowledge`)
        holds the vectors. Raises EnvironmentProblem when a mode that is asked for cannot work, and
        UsageError without items, or as `load_items`.
        """
        self.items = tuple(load_items() if items is None else items)
        if not self.items:
            raise UsageError(
                "there is no item of knowledge to search; give a directory that has docs/ or kernels/"
            )
        self._by_id = {item.id: item for item in self.items}
        if len(self._by_id) < len(self.items):
            raise UsageError("two items of knowledge have the same id")
        self._evidence = evidence or EvidenceLog()
        self.mode, self.notice = _choose(mode)
        texts = [_searched_text(item) for item in self.items]
        if self.mode != "lexical":
            self._embed = Embedder(texts)
            vectors = self._embed(texts)
            ids = list(self._by_id)
            place = (directory or home() / "knowledge") / _address(ids, vectors)
            self._store, reason = open_store(place, ids, vectors)
            if reason:
                self.notice = _join(self.notice, f"vectors are held in memory: {reason}")
        if self.mode != "vector":
            self._lexical = _Lexical(list(self._by_id), texts)

    def search(
        self,
        query: str,
        *,
        operator: str | None = None,
        dsl: str | None = None,
        architecture: str | None = None,
        kind: Kind | None = None,
        k: int = 5,
    ) -> tuple[Hit, ...]:
        """Return at most `k` items that match and hold for every filter given, best first.

        An item of operator, dsl or architecture `any` passes that filter. Raises UsageError for an
        empty query or k < 1.
        """
        if not query.strip() or k < 1:
            raise UsageError("a knowledge search needs a query that is not empty, and k >= 1")
        allowed = [
            item.id
            for item in self.items
            if item.applies(operator, dsl, architecture) and kind in (None, item.kind)
        ]
        ranks: dict[str, dict[Channel, int]] = {}
        for channel in _CHANNELS[self.mode]:
            for rank, name in enumerate(self._ranked(channel, query, allowed), start=1):
                ranks.setdefault(name, {})[channel] = rank
        scores = {
            name: sum(1 / (_RANK_CONSTANT + r) for r in found.values()) for name, found in ranks.items()
        }
        best = sorted(scores, key=lambda name: (-scores[name], name))[:k]
        known = tuple(self._evidence) if best else ()
        return tuple(
            Hit(self._by_id[name], scores[name], ranks[name], tuple(e for e in known if e.item == name))
            for name in best
        )

    def kernels(self, operator: str, dsl: str, architecture: str | None = None) -> tuple[Item, ...]:
        """Every reference kernel of an operator in a dsl, ordered by id."""
        return tuple(
            item
            for item in self.items
            if item.kind == "kernel" and operator in item.operator and item.applies(None, dsl, architecture)
        )

    def _ranked(self, channel: Channel, query: str, allowed: Sequence[str]) -> list[str]:
        if channel == "lexical":
            return self._lexical.ranked(query, allowed)
        near = self._store.nearest(self._embed([query])[0], allowed, DEPTH)
        return [name for name, cosine in near if cosine >= _LEAST_COSINE]


class _Lexical:
    """BM25 over stemmed words."""

    def __init__(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        # bm25s calls jax once, which keeps three quarters of a GPU's memory from then on.
        with _hidden("jax"):
            import bm25s

        self._ids = ids
        self._bm25 = bm25s.BM25()
        self._bm25.index([words(text) for text in texts], show_progress=False)

    def ranked(self, query: str, allowed: Sequence[str]) -> list[str]:
        asked = words(query)
        if not asked:  # which bm25s does not take
            return []
        scores = dict(zip(self._ids, self._bm25.get_scores(asked), strict=True))
        found = [name for name in allowed if scores[name] > 0]
        return sorted(found, key=lambda name: (-scores[name], name))[:DEPTH]


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Inside, a module that nobody has imported yet is not installed."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


_CHANNELS: dict[Mode, tuple[Channel, ...]] = {
    "hybrid": ("vector", "lexical"),
    "vector": ("vector",),
    "lexical": ("lexical",),
}


def _choose(mode: Mode | None) -> tuple[Mode, str]:
    """The mode to work in, and a notice when it is less than hybrid without being asked for."""
    if mode is not None and mode not in get_args(Mode):
        raise UsageError(f"unknown retrieval mode {mode!r}; use one of {', '.join(get_args(Mode))}")
    missing = "bm25s is not installed (pip install 'atrex[knowledge]')"
    if find_spec("bm25s") is not None:
        return mode or "hybrid", ""
    if mode in ("hybrid", "lexical"):
        raise EnvironmentProblem(f"{mode} retrieval is not possible: {missing}")
    return "vector", "" if mode else f"search is by vectors alone: {missing}"


def _searched_text(item: Item) -> str:
    """What an item is found by: its title, its tags and its text."""
    tags = (*item.technique, *item.symptoms, *item.operator)
    return "\n".join((item.title, " ".join(tags), item.preconditions, item.text))


def _address(ids: Sequence[str], vectors: Vectors) -> str:
    """Name of a store: changes whenever an id, a text or the embedding does."""
    digest = hashlib.sha256("\n".join(ids).encode())
    digest.update(vectors.tobytes())
    return digest.hexdigest()[:16]


def _join(*notices: str) -> str:
    return "; ".join(notice for notice in notices if notice)
