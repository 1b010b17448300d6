"""Where the vectors of the items lie: in chromadb on disk, or in memory.

Both answer the same question over the same vectors. The store on disk is addressed by the content
it holds, so processes that see different items never share one, and it is built under a lock.
"""

from __future__ import annotations

import fcntl
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

KEEP = 8  # stores of other contents that stay on disk
COMPLETE = "complete"  # written last, with the name of the chromadb directory beside it

Vectors = NDArray[np.float32]


class Store(Protocol):
    """Nearest items by cosine."""

    def nearest(self, vector: Vectors, ids: Sequence[str], k: int) -> list[tuple[str, float]]:
        """The `k` of `ids` nearest to `vector` [dimension], with their cosine, nearest first."""
        ...


class MemoryStore:
    """Exact search over vectors [n, dimension] of length 1 held in memory."""

    def __init__(self, ids: Sequence[str], vectors: Vectors) -> None:
        self._row = {name: row for row, name in enumerate(ids)}
        self._vectors = vectors

    def nearest(self, vector: Vectors, ids: Sequence[str], k: int) -> list[tuple[str, float]]:
        """See `Store.nearest`; equal cosines are ordered by id."""
        cosine = self._vectors[[self._row[name] for name in ids]] @ vector
        return sorted(zip(ids, map(float, cosine), strict=True), key=_nearest_first)[:k]


class ChromaStore:
    """The same search in a chromadb collection on disk; vectors are given, never computed by it."""

    def __init__(self, directory: Path, ids: Sequence[str], vectors: Vectors) -> None:
        """Open the finished store in `directory`, or build it there.

        Raises OSError or chromadb's ChromaError when neither is possible.
        """
        from chromadb.errors import ChromaError

        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / "lock"):
            try:
                self._collection = _open(directory, len(ids))
            except (ChromaError, LookupError, FileNotFoundError):  # absent, damaged, or never finished
                self._collection = _build(directory, ids, vectors)
            _prune(directory)

    def nearest(self, vector: Vectors, ids: Sequence[str], k: int) -> list[tuple[str, float]]:
        """See `Store.nearest`."""
        if not ids:
            return []
        found = self._collection.query(
            query_embeddings=vector[None], ids=list(ids), n_results=min(k, len(ids)), include=["distances"]
        )
        pairs = zip(found["ids"][0], found["distances"][0], strict=True)
        return sorted(((name, 1 - float(distance)) for name, distance in pairs), key=_nearest_first)


def open_store(directory: Path, ids: Sequence[str], vectors: Vectors) -> tuple[Store, str]:
    """Return the store on disk, else one in memory; and a line that says why it is in memory."""
    if find_spec("chromadb") is None:
        return MemoryStore(ids, vectors), "chromadb is not installed (pip install 'atrex[knowledge]')"
    from chromadb.errors import ChromaError

    try:
        return ChromaStore(directory, ids, vectors), ""
    except (OSError, ChromaError) as error:
        reason = " ".join(str(error).split())
        return MemoryStore(ids, vectors), f"{directory} cannot be used ({reason}); set ATREX_HOME"


def _open(directory: Path, count: int) -> Any:
    marker = directory / COMPLETE
    collection = _client(directory / marker.read_text()).get_collection("items", embedding_function=None)
    if collection.count() != count:
        raise LookupError(directory)
    marker.touch()  # its time is when the store was last opened
    return collection


def _build(directory: Path, ids: Sequence[str], vectors: Vectors) -> Any:
    """Build under a name of its own: chromadb keeps a broken client for the path that broke it."""
    shutil.rmtree(directory, ignore_errors=True)
    place = directory / uuid.uuid4().hex
    place.mkdir(parents=True)
    # embedding_function=None: the default one would download a model at its first use.
    collection = _client(place).create_collection(
        "items", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
    )
    collection.add(ids=list(ids), embeddings=vectors)
    (directory / COMPLETE).write_text(place.name)
    return collection


def _client(place: Path) -> Any:
    from chromadb import PersistentClient
    from chromadb.config import Settings

    if not place.is_dir():  # chromadb would create it
        raise FileNotFoundError(place)
    return PersistentClient(path=str(place), settings=Settings(anonymized_telemetry=False))


def _nearest_first(pair: tuple[str, float]) -> tuple[float, str]:
    return -pair[1], pair[0]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file; the kernel frees it when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prune(current: Path) -> None:
    """Remove the stores of other contents that were opened longest ago, and unfinished ones."""
    others = [path for path in current.parent.iterdir() if path.is_dir() and path != current]
    for path in sorted(others, key=_last_opened, reverse=True)[KEEP:]:
        shutil.rmtree(path, ignore_errors=True)


def _last_opened(directory: Path) -> float:
    marker = directory / COMPLETE
    return marker.stat().st_mtime if marker.exists() else 0.0
