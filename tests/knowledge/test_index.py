"""Retrieval finds what it should, in every mode, and its store survives crashes and neighbours."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from atrex.errors import EnvironmentProblem, UsageError
from knowledge.embed import DIMENSION, Embedder
from knowledge.evaluate import Quality, evaluate, load_queries, ndcg, recall
from knowledge.evidence import Evidence, EvidenceLog
from knowledge.index import Index, Mode
from knowledge.item import ROOT, Item, load_items
from knowledge.store import COMPLETE, KEEP, ChromaStore, MemoryStore

pytest.importorskip("bm25s")
pytest.importorskip("chromadb")


# Hybrid on the 31 test queries measured recall@5 0.89 and nDCG@5 0.78 (`python -m knowledge.evaluate`); the
# floors are about two queries lower. Fusion did not beat the lexical channel there: it is on a par with it.
RECALL_FLOOR = 0.82
NDCG_FLOOR = 0.73


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATREX_HOME", str(tmp_path / "home"))


def item(name: str, text: str, **fields: object) -> Item:
    defaults = {"technique": "t", "dsl": "any", "architecture": "any", "operator": "any"}
    common = {"title": name, "source": "test", "licence": "Apache-2.0", "kind": "note", "path": Path(name)}
    return Item.model_validate({**defaults, **common, "id": f"docs/{name}", "text": text, **fields})


ITEMS = (
    item("aligned", "Vector loads need alignment.", dsl="triton", architecture="sm_90"),
    item("threads", "OpenMP threads cost time on small inputs.", dsl="cpp", architecture="x86-64"),
    item("masks", "Masked lanes need a neutral element.", operator=["softmax"]),
)


def names(index: Index, query: str, **filters: object) -> list[str]:
    return [hit.item.title for hit in index.search(query, **filters)]  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_search_finds_and_filters(mode: Mode) -> None:
    index = Index(ITEMS, mode=mode)
    assert (index.mode, index.notice) == (mode, "")
    assert names(index, "alignment of vector loads")[0] == "aligned"
    assert names(index, "threads")[0] == "threads"
    assert "aligned" not in names(index, "alignment of vector loads", architecture="x86-64")
    assert "threads" not in names(index, "threads", dsl="triton")
    assert "masks" not in names(index, "neutral element", operator="rms_norm")
    assert names(index, "neutral element", operator="softmax", architecture="sm_90")[0] == "masks"
    assert names(index, "neutral element", kind="kernel") == []
    assert len(names(index, "loads threads lanes", k=1)) == 1


def test_hybrid_says_which_channel_found_an_item() -> None:
    (hit, *_) = Index(ITEMS).search("OpenMP threads")
    assert hit.ranks == {"vector": 1, "lexical": 1}
    assert hit.score == pytest.approx(2 / 61)


def test_what_resembles_nothing_is_not_found() -> None:
    index = Index(ITEMS)
    assert index.search("zzz") == ()
    assert index.search("how do I") == ()  # stop words only


def test_no_items() -> None:
    with pytest.raises(UsageError, match="no item of knowledge"):
        Index(())


@pytest.mark.parametrize(("query", "k"), [("", 5), ("  ", 5), ("loads", 0)])
def test_a_search_for_nothing_is_refused(query: str, k: int) -> None:
    with pytest.raises(UsageError):
        Index(ITEMS, mode="lexical").search(query, k=k)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="hybrid, vector, lexical"):
        Index(ITEMS, mode="semantic")  # type: ignore[arg-type]


def test_evidence_comes_with_a_hit(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path)
    record = Evidence(
        item="docs/threads", operator="rms_norm", bucket="all", hardware="EPYC", failed_gate="bounds",
        run="r", date=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    log.record(record)
    evidence = {h.item.title: h.evidence for h in Index(ITEMS, evidence=log).search("threads loads vector")}
    assert evidence["threads"] == (record,)
    assert evidence["aligned"] == ()


def test_kernels_are_looked_up_exactly() -> None:
    kernel = {"kind": "kernel", "operator": "rms_norm", "dsl": "triton", "architecture": "sm_90"}
    items = (
        item("b", "x", id="kernels/triton/rms_norm/b", **kernel),
        item("a", "x", id="kernels/triton/rms_norm/a", **kernel),
        item("note", "x", operator="rms_norm"),
    )
    index = Index(items, mode="lexical")
    assert [k.title for k in index.kernels("rms_norm", "triton")] == ["b", "a"]
    assert index.kernels("rms_norm", "triton", architecture="x86-64") == ()
    assert index.kernels("rms_norm", "cpp") == ()
    assert index.kernels("layer_norm", "triton") == ()


# -- without the optional packages


def test_without_chromadb_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Index(ITEMS)
    monkeypatch.setitem(sys.modules, "chromadb", None)  # what Python itself does for a failed import
    reduced = Index(ITEMS)
    assert reduced.mode == "hybrid"
    assert "held in memory: chromadb is not installed" in reduced.notice
    for query in ("vector loads", "threads", "neutral element of lanes"):
        assert names(reduced, query) == names(full, query)


def test_without_bm25s_search_is_by_vectors_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    index = Index(ITEMS)
    assert index.mode == "vector"
    assert "bm25s is not installed" in index.notice
    assert names(index, "alignment of vector loads")[0] == "aligned"
    with pytest.raises(EnvironmentProblem, match="pip install"):
        Index(ITEMS, mode="hybrid")


# -- the store


@pytest.fixture
def vectors() -> tuple[list[str], np.ndarray]:
    drawn = np.random.default_rng(7).normal(size=(200, 32)).astype(np.float32)
    return [f"i{n:03}" for n in range(200)], drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_both_stores_give_the_same_neighbours(tmp_path: Path, vectors: tuple[list[str], np.ndarray]) -> None:
    ids, rows = vectors
    disk, memory = ChromaStore(tmp_path / "s", ids, rows), MemoryStore(ids, rows)
    for some in (ids, ids[::3], ids[:2], []):
        for row in rows[:10]:
            found, exact = disk.nearest(row, some, 5), memory.nearest(row, some, 5)
            assert [name for name, _ in found] == [name for name, _ in exact]
            assert [c for _, c in found] == pytest.approx([c for _, c in exact], abs=1e-5)


def test_a_finished_store_is_opened_and_not_rebuilt(
    tmp_path: Path, vectors: tuple[list[str], np.ndarray]
) -> None:
    ids, rows = vectors
    ChromaStore(tmp_path / "s", ids, rows)
    (tmp_path / "s" / "witness").touch()
    ChromaStore(tmp_path / "s", ids, rows)
    assert (tmp_path / "s" / "witness").exists()


@pytest.mark.parametrize(
    "damage",
    [
        *("garbage", "directory gone"),
        *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("unfinished", "database gone")),
    ],
)
def test_a_damaged_store_is_rebuilt(
    tmp_path: Path, damage: str, vectors: tuple[list[str], np.ndarray]
) -> None:
    ids, rows = vectors
    build = "import sys, numpy as np; from pathlib import Path; from knowledge.store import ChromaStore\n"
    build += (
        "ids, rows = sys.argv[2].split(), np.load(sys.argv[3]); ChromaStore(Path(sys.argv[1]), ids, rows)"
    )
    np.save(tmp_path / "rows.npy", rows)
    arguments = [str(tmp_path / "stores" / "s"), " ".join(ids), str(tmp_path / "rows.npy")]
    subprocess.run([sys.executable, "-c", build, *arguments], check=True, timeout=60)
    store = tmp_path / "stores" / "s"
    (database,) = store.glob("*/chroma.sqlite3")
    match damage:
        case "unfinished":
            (store / COMPLETE).unlink()
        case "garbage":
            database.write_bytes(b"garbage" * 1000)
        case "database gone":
            database.unlink()
        case "directory gone":
            shutil.rmtree(database.parent)
    again = ChromaStore(store, ids, rows)
    assert again.nearest(rows[3], ids, 1)[0][0] == ids[3]
    assert (store / COMPLETE).exists()


def test_processes_that_open_at_once_agree(tmp_path: Path) -> None:
    script = (
        "from knowledge.index import Index\n"
        "index = Index(); assert not index.notice, index.notice\n"
        "print([h.item.id for h in index.search('short rows waste lanes', kind='note')])\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert "docs/gpu/multi-row-tile" in answers[0]
    assert len([p for p in (tmp_path / "home" / "knowledge").iterdir() if p.is_dir()]) == 1


def test_a_process_waits_for_the_one_that_builds(tmp_path: Path) -> None:
    stores = tmp_path / "home" / "knowledge"
    stores.mkdir(parents=True)
    with (stores / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script = "from knowledge.index import Index; print(Index().notice)"
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        assert [path.name for path in stores.iterdir()] == ["lock"]
    assert process.communicate(timeout=60)[0] == "\n"
    assert len(list(stores.glob(f"*/{COMPLETE}"))) == 1


def test_changed_items_get_a_store_of_their_own(tmp_path: Path) -> None:
    assert names(Index(ITEMS, directory=tmp_path / "k"), "warp")[:1] != ["aligned"]
    changed = (item("aligned", "A warp moves 512 bytes."), *ITEMS[1:])
    assert names(Index(changed, directory=tmp_path / "k"), "warp")[0] == "aligned"


def test_old_stores_are_removed(tmp_path: Path) -> None:
    for n in range(KEEP + 3):
        Index((item("a", f"text number {n}"),), directory=tmp_path / "k", mode="vector")
    assert len([p for p in (tmp_path / "k").iterdir() if p.is_dir()]) == KEEP + 1


def test_a_home_that_cannot_be_written_is_reported_and_search_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ATREX_HOME", str(tmp_path / "file"))
    index = Index(ITEMS)
    assert "held in memory" in index.notice
    assert "set ATREX_HOME" in index.notice
    assert "threads" in {
        hit.item.title for hit in Index(ITEMS, evidence=EvidenceLog(tmp_path)).search("threads")
    }


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    """chromadb's own embedding would put a model under the home directory."""
    script = "from knowledge.index import Index; Index().search('bandwidth')"
    environment = {"HOME": str(tmp_path), "ATREX_HOME": str(tmp_path / "atrex"), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=120)
    written = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert written <= {"atrex"}


# -- embedding and quality


def test_vectors_are_the_same_in_every_process() -> None:
    script = (
        "from knowledge.embed import Embedder; print(Embedder(['a b word'])(['word test']).tobytes().hex())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_vectors_have_length_one_and_rare_words_weigh_more() -> None:
    embed = Embedder(["common rare", "common plain", "common other"])
    found = embed(["common", "rare", "common rare", ""])
    assert found.shape == (4, DIMENSION)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 1, 0], abs=1e-6)
    assert found[2] @ found[1] > found[2] @ found[0]


def test_measures_of_quality() -> None:
    relevant = {"a": 2, "b": 1}
    assert recall(["x", "a"], relevant, 5) == 0.5
    assert recall(["x", "a"], relevant, 1) == 0.0
    assert ndcg(["a", "b"], relevant, 5) == 1.0
    assert ndcg(["b", "a"], relevant, 5) == pytest.approx((1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3)))
    assert ndcg(["x"], relevant, 5) == 0.0


def test_a_label_without_an_item_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queries.yaml"
    path.write_text("- {split: dev, text: x, relevant: {docs/none: 2}}\n")
    with pytest.raises(UsageError, match="docs/none"):
        load_queries(ITEMS, path)


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> dict[Mode, Quality]:
    items = load_items(ROOT)
    queries = [query for query in load_queries(items) if query.split == "test"]
    place = tmp_path_factory.mktemp("knowledge")
    modes: tuple[Mode, ...] = ("hybrid", "vector", "lexical")
    return {mode: evaluate(Index(items, mode=mode, directory=place), queries) for mode in modes}


def test_retrieval_is_as_good_as_measured(quality: dict[Mode, Quality]) -> None:
    assert quality["hybrid"].count >= 15
    assert quality["hybrid"].recall >= RECALL_FLOOR
    assert quality["hybrid"].ndcg >= NDCG_FLOOR


def test_fusion_is_no_worse_than_either_channel(quality: dict[Mode, Quality]) -> None:
    one_query = 1 / quality["hybrid"].count
    for channel in ("vector", "lexical"):
        assert quality["hybrid"].recall >= quality[channel].recall - one_query
        assert quality["hybrid"].ndcg >= quality[channel].ndcg - one_query


def test_searching_leaves_jax_alone(tmp_path: Path) -> None:
    """bm25s calls jax while it is imported, and jax then keeps most of a GPU's memory."""
    folder = tmp_path / "jax"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "lax.py").write_text("def top_k(*_): print('jax was called')\n", encoding="utf-8")
    search = """if True:
        import sys
        from knowledge.index import _Lexical
        assert _Lexical(["a", "b"], ["softmax of rows", "layer norm"]).ranked("softmax", ["a", "b"]) == ["a"]
        assert not [name for name in sys.modules if name.partition(".")[0] == "jax"]
        import jax.lax
        jax.lax.top_k()
    """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", search], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("jax was called\n", 0), done.stderr
