"""Replies on disk, found by what was asked: nothing is paid twice, and a run repeats without a network."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from agent.models.records import Model, Provider, Reply, Request
from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Record

VERSION = 1


class Entry(Record):
    """One file: a reply and all that it answers."""

    schema_version: int = VERSION
    provider: Provider
    model: str
    request: Request
    reply: Reply


def address(provider: Provider, model: str, request: Request) -> str:
    """The sha256 of provider, model and request as canonical JSON.

    What has its default is left out, so that a request keeps its address when requests gain a field.
    """
    asked = request.model_dump(mode="json", exclude_defaults=True)
    question = {"provider": provider, "model": model, "request": asked}
    canonical = json.dumps(
        question, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


class Shelf:
    """A directory of replies, one file each, which appears whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, provider: Provider, model: str, request: Request) -> Path:
        """Where the reply to this question is, or would be."""
        return self.directory / f"{address(provider, model, request)}.json"

    def find(self, provider: Provider, model: str, request: Request) -> Reply | None:
        """The recorded reply. Raises UsageError for a file that is damaged or answers something else."""
        path = self.path(provider, model, request)
        try:
            entry = Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{path}: cannot read the recorded reply ({error.strerror})") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise UsageError(
                f"{path}: not a recorded reply ({where}: {first['msg']}); delete it to ask again"
            ) from None
        if entry.schema_version > VERSION:
            raise UsageError(f"{path}: written by a newer Atrex (version {entry.schema_version}); upgrade")
        if address(entry.provider, entry.model, entry.request) != path.stem:
            raise UsageError(f"{path}: answers another request than its name says; delete it to ask again")
        return entry.reply.model_copy(update={"recorded": True})

    def put(self, provider: Provider, model: str, request: Request, reply: Reply) -> None:
        """Write a reply, and return when it is on the disk. Raises EnvironmentProblem if it cannot be."""
        entry = Entry(provider=provider, model=model, request=request, reply=reply)
        path = self.path(provider, model, request)
        try:
            _write(path, entry.model_dump_json(indent=1).encode() + b"\n")
        except OSError as error:
            raise _unwritable(path, error) from None

    def prepare(self) -> None:
        """Make the directory and see that it takes a file: to be known before anything is paid."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise _unwritable(self.directory, error) from None


def _write(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unwritable(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{path}: cannot write replies there ({error.strerror}); choose another directory"
    )


class Cached:
    """A model that is asked each question once. Raises EnvironmentProblem for a directory it cannot write."""

    def __init__(self, model: Model, directory: Path) -> None:
        self._model = model
        self._shelf = Shelf(directory)
        self._shelf.prepare()

    @property
    def provider(self) -> Provider:
        """The API of the model behind it."""
        return self._model.provider

    @property
    def name(self) -> str:
        """The model behind it."""
        return self._model.name

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        """The recorded reply, or a new one, which is on the disk before it is returned."""
        if (known := self._shelf.find(self.provider, self.name, request)) is not None:
            return known
        reply = self._model.complete(request, seconds=seconds)
        self._shelf.put(self.provider, self.name, request, reply)
        return reply


class Replay:
    """A model that knows only what is on record: no network, no key, no SDK."""

    def __init__(self, provider: Provider, name: str, directory: Path) -> None:
        if not directory.is_dir():
            raise UsageError(f"{directory}: no such directory of recorded replies")
        self.provider: Provider = provider
        self.name = name
        self._shelf = Shelf(directory)

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        """The recorded reply, at once. Raises UsageError when there is none."""
        if (known := self._shelf.find(self.provider, self.name, request)) is not None:
            return known
        path = self._shelf.path(self.provider, self.name, request)
        raise UsageError(
            f"{path.parent}: no reply of {self.provider} ({self.name}) to this request is on record "
            f"({path.name}): the prompt, the model or a parameter has changed; run without --replay to ask"
        )
