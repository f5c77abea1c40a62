"""The page of a run that is watched, served to the browser of whoever knows its address.

Any user of the machine may connect to its loopback interface, and any page of the web may have a browser do so. Hence:
- The address has a random token, which is compared in constant time. Without it there is no answer but 404.
- A request must name this server as its host: names of others that lead here (DNS rebinding) are refused.
- Only GET is answered; a request's body is not read.
- A connection has `PATIENCE` seconds for its request, of at most `MOST_BYTES`; at most `MOST_CONNECTIONS` are open.
- The page loads nothing, runs no script, and may be framed by no other.

Guarantees: one thread, the caller's; when `serve` returns or raises, all connections and the port are closed.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from http import HTTPStatus

from marius_oac.errors import InputError

LOOPBACK = "127.0.0.1"
PATIENCE = 5.0
MOST_BYTES = 16 << 10
MOST_CONNECTIONS = 128
_HEADERS = {
    "Connection": "close",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Page = Callable[[str], tuple[str, float | None] | None]
"""Makes the page of a name: its text, and the seconds after which the browser asks again (None: never); None: there is
no such page."""


class PageServer:
    """Serves pages at `http://127.0.0.1:PORT/TOKEN/NAME`.

    Args:
        page: makes them.
        port: 0: any that is free.
    """

    def __init__(self, page: Page, port: int = 0):
        self._page, self._port = page, port
        self._token = secrets.token_urlsafe(32)
        self._open = 0
        self._error: BaseException | None = None

    @property
    def address(self) -> str:
        """Where the pages are, once it serves; ends with a slash."""
        return f"http://{LOOPBACK}:{self._port}/{self._token}/"

    def serve(self, ready: Callable[[], None], done: Callable[[], bool], every: float) -> None:
        """Serves until `done`, which is asked every so many seconds. `ready` is called when the address is known.

        Raises:
            InputError: the port can't be had.
            Exception: what `page`, `ready` and `done` raise.
        """
        asyncio.run(self._serve(ready, done, every))

    async def _serve(self, ready: Callable[[], None], done: Callable[[], bool], every: float) -> None:
        try:
            server = await asyncio.start_server(self._answer, LOOPBACK, self._port, limit=MOST_BYTES)
        except OSError as error:
            raise InputError(f"can't be listened on: {error.strerror}", f"port {self._port}") from None
        try:
            self._port = server.sockets[0].getsockname()[1]
            self._wake = asyncio.Event()
            ready()
            while not done():
                try:
                    await asyncio.wait_for(self._wake.wait(), every)
                except TimeoutError:
                    continue
                self._wake.clear()
                if self._error is not None:
                    raise self._error
            server.close()
            while self._open:  # each for `PATIENCE` seconds at most
                await self._wake.wait()
                self._wake.clear()
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(PATIENCE):
                if self._open <= MOST_CONNECTIONS:
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # of the other side: it is gone, too slow, or no browser; or the server ends
        except Exception as error:
            self._error = error
        finally:
            self._open -= 1
            writer.close()
            self._wake.set()

    def _response(self, head: bytes) -> bytes:
        """The answer to the head of a request."""
        status, text, again = self._found(head)
        body = text.encode()
        headers = _HEADERS | {"Content-Length": str(len(body))} | ({} if again is None else {"Refresh": f"{again:g}"})
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _found(self, head: bytes) -> tuple[HTTPStatus, str, float | None]:
        request, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        target, _, version = rest.partition(" ")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            return HTTPStatus.BAD_REQUEST, "", None
        if _values(fields, "host") not in ([f"{LOOPBACK}:{self._port}"], [f"localhost:{self._port}"]):
            return HTTPStatus.MISDIRECTED_REQUEST, "", None
        token, _, name = target.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("latin-1"), self._token.encode()):
            return HTTPStatus.NOT_FOUND, "", None
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "", None
        found = self._page(name)
        return (HTTPStatus.NOT_FOUND, "", None) if found is None else (HTTPStatus.OK, *found)


def _values(fields: list[str], wanted: str) -> list[str]:
    """The values of all header fields of a name."""
    found = []
    for each in fields:
        name, _, value = each.partition(":")
        if name.lower() == wanted:
            found.append(value.strip(" \t").lower())
    return found
