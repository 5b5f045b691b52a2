"""Tracking servers that are not well: one that never answers properly, and a proxy that loses answers of a real one."""

from __future__ import annotations

import http.client
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


class Unwell(BaseHTTPRequestHandler, ABC):
    """What becomes of a request is for `ill` to say."""

    @abstractmethod
    def ill(self) -> None:
        """Answer, or do not."""

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = lambda self: self.ill()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Dropping(Unwell):
    """Hangs up in the middle of the request."""

    def ill(self) -> None:
        self.rfile.read(1) if self.headers.get("Content-Length") else None
        self.connection.close()


class Slow(Unwell):
    """Does not answer within anybody's patience."""

    def ill(self) -> None:
        time.sleep(2)


class Broken(Unwell):
    """Answers with an error of its own."""

    def ill(self) -> None:
        self.send_error(500, "out of order")


class Forbidding(Unwell):
    """Wants another password, and quotes what it was told."""

    def ill(self) -> None:
        self.send_error(401, f"not {self.headers.get('Authorization')}")


class Passing(Unwell):
    """Answers as an empty MLflow would, until it is told to hang up."""

    away = False
    asked: list[str]  # what came, without its headers
    logins: set[str | None]

    def ill(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(f"{self.command} {self.path} {body.decode(errors='replace')}")
        self.logins.add(self.headers.get("Authorization"))
        if self.away:
            return self.connection.close()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


class LossyProxy(Unwell):
    """Passes requests on to `backend`; every few, by a seeded draw, are lost on the way there or on the way back."""

    backend: int
    draw = random.Random(0)
    lost: dict[str, int]

    def ill(self) -> None:
        fate = self.draw.choices(("answered", "request", "answer"), (0.94, 0.03, 0.03))[0]
        self.lost[fate] = self.lost.get(fate, 0) + 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fate == "request":
            return self.connection.close()
        connection = http.client.HTTPConnection(HOST, self.backend, timeout=30)
        connection.request(self.command, self.path, body, {**dict(self.headers), "Host": f"{HOST}:{self.backend}"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if fate == "answer":
            return self.connection.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(handler: type[Unwell]) -> Iterator[str]:
    """The address of a server with that handler."""
    server = ThreadingHTTPServer((HOST, 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
