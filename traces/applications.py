"""Which profiles belong to which application, and how many card-hours each application spends.

    specs = parse_card_hours(["chat=1200", "search=300"])     # or load_applications(path)
    applications = assign(profiles, specs)

A YAML file holds a list under `applications`; a CSV file has the columns name, card_hours and files, with
several patterns apart by `;`:

    applications:
      - {name: chat, card_hours: 1200, files: ["llama-*", "chat-node7*"]}
      - {name: search, card_hours: 300}

`files` are patterns of file names (`fnmatch`, case counts). Without them a profile belongs to the application
whose name begins its file name; of two such names, to the longer.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import fsum
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from atrex import strict_yaml
from atrex.errors import UsageError
from atrex.records import Record
from traces.profile import Profile, merge
from traces.workload import Text

EVERY_FILE = "every file"
_SHOWN = 5  # names in a message
_COLUMNS = ("name", "card_hours", "files")
_REMEDY = "; see docs/traces.md for the form"

Hours = Annotated[float, Field(gt=0)]


class ApplicationSpec(Record):
    """An application as the user states it."""

    name: Text
    card_hours: Hours
    files: tuple[Text, ...] = ()

    def owns(self, file: str) -> bool:
        """Whether one of its patterns is that of this file."""
        return any(fnmatchcase(file, pattern) for pattern in self.files)


class _File(Record):
    applications: Annotated[tuple[ApplicationSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _once(self) -> _File:
        names = [one.name for one in self.applications]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"application {twice[0]!r} is given twice")
        return self


@dataclass(frozen=True, slots=True)
class Application:
    """An application with its profiles, which all show device time."""

    name: str
    card_hours: float
    profiles: tuple[Profile, ...]
    per_file: bool = False  # every profile counts the same hour, however long it is

    @property
    def busy_us(self) -> float:
        """Busy time of all its profiles."""
        return fsum(busy_us(profile) for profile in self.profiles)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All applications by name, and the files that show nothing."""

    applications: tuple[Application, ...]
    idle: tuple[str, ...] = ()  # files without device time

    @property
    def card_hours(self) -> float:
        """Of all applications."""
        return fsum(one.card_hours for one in self.applications)

    @property
    def stated(self) -> bool:
        """Whether card-hours were given at all."""
        return not any(one.per_file for one in self.applications)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles of all applications."""
        return merge(*(one.profiles for one in self.applications))


def busy_us(profile: Profile) -> float:
    """The busy time of a profile's entries, added up exactly."""
    return fsum(entry.busy_us for entry in profile.entries)


def parse_card_hours(options: Iterable[str]) -> tuple[ApplicationSpec, ...]:
    """Applications of `NAME=HOURS` options. Raises UsageError."""
    found = list[dict[str, object]]()
    for option in options:
        name, equals, hours = option.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"--card-hours {option!r}: give NAME=HOURS, such as chat=1200")
        found.append({"name": name.strip(), "card_hours": _number(hours)})
    return _validated(found, "--card-hours") if found else ()


def load_applications(path: Path) -> tuple[ApplicationSpec, ...]:
    """Applications of a YAML or CSV file. Raises UsageError naming the file, the field and the remedy."""
    if path.suffix.lower() == ".csv":
        return _validated(_rows(path), str(path))
    return strict_yaml.read(path, _File.model_validate, _REMEDY).applications


def _rows(path: Path) -> list[dict[str, object]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := [name for name in _COLUMNS[:2] if name not in (reader.fieldnames or ())]:
                raise UsageError(f"{path}: no column {missing[0]}{_REMEDY}")
            if unknown := [name for name in reader.fieldnames or () if name not in _COLUMNS]:
                raise UsageError(f"{path}: unknown column {unknown[0]!r}; known: {', '.join(_COLUMNS)}")
            return [_row(path, reader.line_num, row) for row in reader]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not CSV: {error}{_REMEDY}") from None


def _row(path: Path, line: int, row: dict[str | None, str | None]) -> dict[str, object]:
    if None in row or None in row.values():
        raise UsageError(f"{path}: line {line}: another number of fields than the header has{_REMEDY}")
    patterns = [pattern.strip() for pattern in (row.get("files") or "").split(";")]
    return {
        "name": (row["name"] or "").strip(),
        "card_hours": _number(row["card_hours"] or ""),
        "files": [pattern for pattern in patterns if pattern],
    }


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # the record says what is wrong with it


def _validated(applications: Sequence[object], where: str) -> tuple[ApplicationSpec, ...]:
    try:
        return _File.model_validate({"applications": applications}).applications
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {place}: {first['msg']}{_REMEDY}") from None


def assign(profiles: Iterable[Profile], specs: Sequence[ApplicationSpec] = ()) -> Fleet:
    """Profiles to applications; without applications every file counts the same hour.

    Raises UsageError naming the profiles that belong to none, or to two, and the applications without a
    profile, or without device time.
    """
    known = merge(profiles)
    idle = tuple(profile.file for profile in known if busy_us(profile) == 0)
    working = tuple(profile for profile in known if busy_us(profile) > 0)
    if not working:
        raise UsageError("no profile shows device time: was the device recorded?")
    if not specs:
        return Fleet((Application(EVERY_FILE, float(len(working)), working, per_file=True),), idle)
    owners = {profile.digest: _owner(profile, specs) for profile in known}
    _complain(known, owners, specs)
    return Fleet(tuple(_application(spec, working, owners) for spec in _by_name(specs)), idle)


def _by_name(specs: Sequence[ApplicationSpec]) -> list[ApplicationSpec]:
    return sorted(specs, key=lambda spec: spec.name)


def _owner(profile: Profile, specs: Sequence[ApplicationSpec]) -> str:
    """The application of a profile; empty if none claims it."""
    claims = [spec.name for spec in specs if spec.owns(profile.file)]
    if len(claims) > 1:
        raise UsageError(
            f"{profile.file} belongs to both {claims[0]} and {claims[1]}: make their files patterns disjoint"
        )
    if claims:
        return claims[0]
    begins = [spec.name for spec in specs if not spec.files and profile.file.startswith(spec.name)]
    return max(begins, key=len, default="")


def _complain(profiles: Sequence[Profile], owners: dict[str, str], specs: Sequence[ApplicationSpec]) -> None:
    strays = [profile.file for profile in profiles if not owners[profile.digest]]
    empty = [spec.name for spec in _by_name(specs) if spec.name not in owners.values()]
    said = [
        f"profiles of no application: {_some(strays)}" if strays else "",
        f"applications without a profile: {_some(empty)}" if empty else "",
    ]
    if strays or empty:
        raise UsageError(f"{'; '.join(part for part in said if part)}: name files patterns that fit{_REMEDY}")


def _application(spec: ApplicationSpec, working: Sequence[Profile], owners: dict[str, str]) -> Application:
    own = tuple(profile for profile in working if owners[profile.digest] == spec.name)
    if not own:
        raise UsageError(f"application {spec.name}: none of its profiles shows device time")
    return Application(spec.name, spec.card_hours, own)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
