"""Condensed profiles: merging has no order, and what is written is what is read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atrex.errors import UsageError
from traces.profile import DeviceTime, Entry, Profile, digest_of, load_profiles, merge, save_profiles


def profile(number: int, kernel: str = "k") -> Profile:
    entry = Entry(kernel=kernel, launches=1 + number, device_us=2.0 + number, busy_us=1.0 + number)
    device = DeviceTime(device=0, span_us=9.0 + number, busy_us=1.0 + number, streams=1)
    return Profile(
        file=f"{number}.json", format="kineto", digest=f"{number:064x}", devices=(device,), entries=(entry,)
    )


groups = st.lists(st.integers(0, 9).map(profile), max_size=8)


@given(groups, groups, groups)
def test_merging_is_associative_commutative_and_idempotent(
    a: list[Profile], b: list[Profile], c: list[Profile]
) -> None:
    whole = merge(a, b, c)
    assert whole == merge(merge(a, b), c) == merge(a, merge(b, c)) == merge(c, b, a) == merge(whole, whole)
    assert {one.digest for one in whole} == {one.digest for one in (*a, *b, *c)}
    assert sum(one.device_us for one in whole) == sum(one.device_us for one in {*a, *b, *c})


@pytest.mark.parametrize("found", [[], [profile(1)], [profile(3), profile(2), profile(3)]])
def test_what_is_written_is_read(found: list[Profile], tmp_path: Path) -> None:
    save_profiles(found, tmp_path / "a.gz")
    assert load_profiles(tmp_path / "a.gz") == merge(found)


def test_the_same_profiles_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.gz", tmp_path / "other.gz"
    save_profiles([profile(1), profile(2)], one)
    save_profiles([profile(2), profile(1), profile(2)], other)
    assert one.read_bytes() == other.read_bytes()


def test_entries_that_cannot_be_told_apart_are_an_error() -> None:
    twice = profile(1).entries * 2
    with pytest.raises(ValueError, match="cannot be told apart"):
        Profile(**dict(profile(1)) | {"entries": twice})
    with pytest.raises(ValueError, match="device 3"):
        Profile(**dict(profile(1)) | {"entries": (twice[0].model_copy(update={"device": 3}),)})


def packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


@pytest.mark.parametrize("text", ['{"file": 3}', "no json", profile(1).model_dump_json()[:-20]])
def test_a_file_that_holds_none_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no condensed profile") as caught:
        load_profiles(packed(tmp_path / "a.gz", text))
    assert "\n" not in str(caught.value)


def test_what_is_no_gzip_or_cut_short_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        load_profiles(path)
    save_profiles([profile(1)], path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UsageError, match="cannot be read"):
        load_profiles(path)
    with pytest.raises(UsageError, match="cannot be written"):
        save_profiles([], tmp_path / "none" / "a.gz")


def test_a_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert digest_of(tmp_path / "a").startswith(
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
