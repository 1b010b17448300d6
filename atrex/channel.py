"""Framed JSON messages, and file descriptors, over a Unix stream socket between judge and worker.

A frame is a header (length of the body, number of descriptors, ticket) and a UTF-8 JSON object. The
judge draws the ticket of every request at random; a reply repeats it, so an answer that was written
before the question was read is not one. The receiver trusts nothing: lengths are bounded, a deadline is
absolute (a peer that trickles bytes gains no time), and nothing is ever unpickled.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

MAX_FRAME = 4 << 20  # bytes of JSON in one frame
_HEADER = struct.Struct("!IBQ")


class ChannelClosed(Exception):
    """The peer is gone."""


class ProtocolError(Exception):
    """The peer sent something that is not a frame."""


class Channel:
    """One end of a socket pair.

    `watch` is a descriptor whose becoming readable means that the peer has ended, although a process
    that it left behind may still hold its end. `max_fds` descriptors are accepted with a frame; with 0
    the kernel drops whatever is sent along.
    """

    def __init__(self, sock: socket.socket, *, watch: int | None = None, max_fds: int = 0) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._watch = watch
        self._max_fds = max_fds
        self._ticket = 0

    @classmethod
    def of(cls, descriptor: int, *, max_fds: int = 0) -> Channel:
        """Take over an inherited descriptor."""
        return cls(socket.socket(fileno=descriptor), max_fds=max_fds)

    @property
    def ticket(self) -> int:
        """The ticket of the frame received last."""
        return self._ticket

    def fileno(self) -> int:
        """The socket's descriptor, for poll()."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(
        self,
        message: Mapping[str, Any],
        *,
        fds: Sequence[int] = (),
        ticket: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """Send one frame; without a `ticket` it answers the frame received last.

        `deadline` is a time.monotonic() value. Raises ChannelClosed, TimeoutError, and ValueError for a
        message that is no finite JSON or is longer than MAX_FRAME.
        """
        body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME:
            raise ValueError(f"a message of {len(body)} bytes exceeds the limit of {MAX_FRAME}")
        header = _HEADER.pack(len(body), len(fds), self._ticket if ticket is None else ticket)
        rest = memoryview(header + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while rest:
            self._wait(select.POLLOUT, deadline)
            try:
                rest = rest[self._socket.sendmsg([rest], rights) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            rights = []

    def receive(self, *, deadline: float | None = None) -> tuple[dict[str, Any], tuple[int, ...]]:
        """The next message and the descriptors that came with it, which the caller must close.

        Raises ChannelClosed, TimeoutError (the monotonic `deadline` passed) and ProtocolError.
        """
        header, fds = self._receive_header(deadline)
        try:
            length, announced, ticket = _HEADER.unpack(header)
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME}")
            if announced != len(fds):
                raise ProtocolError(f"a frame announced {announced} descriptors and brought {len(fds)}")
            message = _decode(self._receive_exactly(length, deadline))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        self._ticket = ticket
        return message, tuple(fds)

    def _receive_header(self, deadline: float | None) -> tuple[bytes, list[int]]:
        header, fds = b"", array.array("i")
        space = socket.CMSG_SPACE(self._max_fds * fds.itemsize) if self._max_fds else 0
        while len(header) < _HEADER.size:
            self._wait(select.POLLIN, deadline)
            try:
                part, ancillary, _, _ = self._socket.recvmsg(
                    _HEADER.size - len(header), space, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            header += part or _closed()
        return header, fds.tolist()

    def _receive_exactly(self, size: int, deadline: float | None) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            self._wait(select.POLLIN, deadline)
            try:
                count = self._socket.recv_into(rest)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            rest = rest[count or _closed() :]
        return body

    def _wait(self, event: int, deadline: float | None) -> None:
        """Until the socket is ready: whatever it still holds is read before `watch` counts."""
        poller = select.poll()
        poller.register(self._socket, event)
        if self._watch is not None:
            poller.register(self._watch, select.POLLIN)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = {fd for fd, _ in poller.poll(None if remaining is None else remaining * 1000)}
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("the deadline passed")
        if ready and self._socket.fileno() not in ready:
            raise ChannelClosed("the peer ended")


def _closed() -> NoReturn:
    raise ChannelClosed("the peer closed the channel")


def _decode(body: bytearray) -> dict[str, Any]:
    try:
        message = json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame is not JSON: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"a frame holds a JSON {type(message).__name__}, not an object")
    return message


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def sealed_memory(name: str, size: int) -> int:
    """A memory file of fixed `size` in bytes, for buffers that both sides map.

    The seals keep the other side from shrinking it under a mapping (SIGBUS in the judge) or growing it.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
