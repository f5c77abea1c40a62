"""The program that gets a file over http or https: a name server, a handshake or a header that never ends is ended with
this process.

It reads the address from standard input. To standard output it writes a line of JSON with the file's length, then the
bytes. If all of them came it ends with 0, otherwise with 1 and a line of JSON on standard error.

Guarantees:
- No message has a part of the address, of a redirect's address or of the answer: they may be secret, or anything.
- Only http and https are spoken, after redirects too; from https no redirect leads to http.
- No user or password is sent, neither those of an address nor those of ~/.netrc.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, BinaryIO, NoReturn
from urllib.parse import urljoin

import requests
import urllib3
from urllib3.util import parse_url

from marius_oac.runtime.closing import end_with

SILENT_SECONDS, MOST_REDIRECTS, PIECE_BYTES = 30.0, 10, 1 << 20


class Refused(Exception):
    """The message says why there is no file."""


def get(address: str, write: BinaryIO) -> None:
    """Writes the line and the file. Raises Refused if it can't be got as a whole."""
    try:
        with requests.Session() as session, _answer(session, address) as answer:
            _check(answer, address)
            length, chunked = answer.headers.get("Content-Length"), "Transfer-Encoding" in answer.headers
            told = {
                "length": None if chunked or length is None else int(length),
                "whole": chunked or length is not None,
            }
            piece = answer.raw.read1(PIECE_BYTES, decode_content=False)
            if "html" in answer.headers.get("Content-Type", "").lower() and piece.lstrip().startswith(b"<"):
                raise Refused("the server sends a web page, not a file")
            write.write(json.dumps(told).encode() + b"\n")
            while piece:
                write.write(piece)
                write.flush()
                piece = answer.raw.read1(PIECE_BYTES, decode_content=False)
            write.flush()
    except (Refused, BrokenPipeError):
        raise
    except Exception as error:  # what the client or a library below it raises: there is no file
        raise Refused(_said(error)) from error


def _answer(session: requests.Session, address: str) -> requests.Response:
    """The answer after all redirects, without its content."""
    for _ in range(MOST_REDIRECTS + 1):
        found = parse_url(address)
        if found.scheme not in ("http", "https"):
            raise Refused("only http and https addresses are fetched, and no redirects to others followed")
        if found.auth is not None:
            raise Refused("a user and a password are not sent over http")
        session.auth = lambda request: request  # nothing of ~/.netrc either
        request = session.prepare_request(requests.Request("GET", address, {"Accept-Encoding": "identity"}))
        settings = session.merge_environment_settings(address, {}, True, None, None)  # proxies, certificates
        # Not `session.send`, which reads a redirect's content into memory.
        answer = session.get_adapter(address).send(request, timeout=SILENT_SECONDS, **settings)
        if not answer.is_redirect:
            return answer
        answer.close()
        before, address = address, urljoin(address, session.get_redirect_target(answer) or "")
        if before.lower().startswith("https:") and address.lower().startswith("http:"):
            raise Refused("a redirect leads from https to http, which is not followed")
    raise Refused(f"there are more than {MOST_REDIRECTS} redirects")


def _check(answer: requests.Response, address: str) -> None:
    """Raises Refused unless it is the whole file, as it lies there, in a form whose end is known."""
    if answer.status_code != HTTPStatus.OK:
        phrase = next((f" {each.phrase}" for each in HTTPStatus if each == answer.status_code), "")
        raise Refused(f"the server answers {answer.status_code}{phrase}")
    if answer.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        raise Refused("the server encodes its answer in a way that is not read here")
    if not re.fullmatch("[0-9]{1,18}", answer.headers.get("Content-Length", "0")):
        raise Refused("the server announces a length that is no number")
    encoding = answer.headers.get("Content-Encoding", "identity").lower()
    compressed = encoding in ("gzip", "x-gzip") and (parse_url(address).path or "").lower().endswith(".gz")
    if encoding not in ("", "identity") and not compressed:
        raise Refused("the server compresses the file, which it was not asked for")


def _said(error: BaseException) -> str:
    """What to say of an error, in words of our own."""
    causes = list(_causes(error))

    def first(*kinds: type[Exception]) -> Any:
        return next((each for each in causes if isinstance(each, kinds)), None)

    none = "no connection to the proxy" if first(requests.exceptions.ProxyError) else "no connection"
    if found := first(ssl.SSLCertVerificationError):
        return f"{none}: the certificate is not trusted: {found.verify_message}"
    if found := first(ssl.SSLError):
        return f"{none}: no TLS: {found.reason}"
    if first(http.client.RemoteDisconnected):
        return f"{none}: the server ended it without an answer"
    if first(http.client.IncompleteRead):
        return "the download was cut off"
    if first(http.client.HTTPException, urllib3.exceptions.InvalidHeader):
        return "the server's answer is no HTTP"
    if found := first(socket.gaierror):
        return f"{none}: {found.strerror}"
    if number := next((each.errno for each in causes if isinstance(each, OSError) and each.errno), None):
        return f"{none}: {os.strerror(number)}"
    if first(TimeoutError, urllib3.exceptions.TimeoutError):
        return f"the server was silent for {SILENT_SECONDS:g} s"
    return "is no valid address" if first(ValueError) else f"no answer that can be read ({type(error).__name__})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it holds or came from, each once, nearest first."""
    seen, waiting = set[int](), [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            others = (each.__cause__, each.__context__, getattr(each, "reason", None), *each.args)
            waiting += [other for other in others if isinstance(other, BaseException)]


def main() -> NoReturn:
    """`PARENT`: of the process. The address comes by standard input."""
    end_with(int(sys.argv[1]))
    try:
        with open(1, "wb", closefd=False) as write:
            get(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"), write)
    except (Refused, BrokenPipeError) as error:
        os.write(2, json.dumps({"error": str(error)}).encode())
        raise SystemExit(1) from None
    raise SystemExit(0)
