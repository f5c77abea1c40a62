"""Web servers that behave badly, by name: what they send, and what is said of it. They listen on the loopback."""

import gzip
import socket
import threading
from contextlib import contextmanager, suppress
from http import HTTPStatus
from urllib.parse import unquote

EDGES = "".join(f"a{i % 7}\tr{i % 3}\tb{i % 11}\n" for i in range(200)).encode()
OK = b"HTTP/1.1 200 OK\r\n"
SECRET = "hush"


def file(content=EDGES, *headers, length=None):
    """An answer with these headers, and the length of the content or another."""
    lines = [*headers, b"Content-Length: %d" % (len(content) if length is None else length)]
    return OK + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + content


def status(line, *headers):
    return b"HTTP/1.1 " + line + b"\r\n" + b"".join(each + b"\r\n" for each in headers) + b"Content-Length: 0\r\n\r\n"


def to(target, code=b"302 Found"):
    return status(code, b"Location: " + (target if isinstance(target, bytes) else target.encode()))


def chunked(*parts, end=b"0\r\n\r\n"):
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + end


def endless(start, piece):
    """Sends for ever, until the other end closes."""

    def serve(connection, stop):
        connection.sendall(start)
        while not stop.is_set():
            connection.sendall(piece)

    return serve


def drip(start, piece=b"x", seconds=0.02):
    def serve(connection, stop):
        connection.sendall(start)
        while not stop.wait(seconds):
            connection.sendall(piece)

    return serve


def silent(connection, stop):
    connection.recv(1)  # until the other end closes: the next one is served then


def reset(start):
    def serve(connection, stop):
        connection.sendall(start)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    return serve


NO_HTTP, CUT, NO_NUMBER = "the server's answer is no HTTP", "the download was cut off", "a length that is no number"
GOOD = {
    "plain": file(),
    "chunked": chunked(EDGES[:100], EDGES[100:]),
    "chunked with words": chunked(EDGES, end=b"0\r\nX: trailer\r\n\r\n"),
    "early hints": b"HTTP/1.1 100 Continue\r\n\r\n" + file(),
    "a relative redirect": to("plain"),
    "a redirect to a path": to("/plain", b"301 Moved Permanently"),
    "a temporary redirect": to("/plain", b"307 Temporary Redirect"),
    "a redirect in Unicode": to("/dé jà".encode()),
    "dé jà": file(),
    "headers in lower case": OK + b"content-length: %d\r\n\r\n" % len(EDGES) + EDGES,
    "more than announced": file(EDGES + b"more", length=len(EDGES)),
    "HTTP 1.0": b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(EDGES) + EDGES,
    "two equal lengths in chunks": OK + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(EDGES).partition(b"\r\n\r\n")[2],
}  # fmt: skip
"""Answers that are the file."""
BAD = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", NO_HTTP),
    "no status": (b"HTTP/1.1\r\n\r\n", NO_HTTP),
    "a status of letters": (b"HTTP/1.1 abc OK\r\n\r\n", NO_HTTP),
    "a status of seven digits": (b"HTTP/1.1 2000000 OK\r\n\r\n", NO_HTTP),
    "a status of 99": (b"HTTP/1.1 099 \x1b[31m\r\n\r\n", NO_HTTP),
    "status 999": (status(b"999 \x1b[31mRequest denied"), "the server answers 999$"),
    "HTTP 0.9": (b"a\tr\tb\n", NO_HTTP),
    "HTTP 3": (b"HTTP/3.0 200 OK\r\n\r\n", NO_HTTP),
    "zeros": (bytes(4096), NO_HTTP),
    "control characters": (b"\x1b[2J\x1b]0;owned\x07\r\n", NO_HTTP),
    "a long first line": (b"HTTP/1.1 200 " + b"O" * 100_000, NO_HTTP),
    "bad UTF-8 in the reason": (status(b"404 \xff\xfe\x1b[31m"), "the server answers 404 Not Found$"),
    "no answer": (b"", "no connection: the server ended it without an answer"),
    "half a header": (OK + b"Content-Len", "the file is empty"),
    "a long header": (OK + b"X: " + b"x" * 100_000 + b"\r\n\r\n", NO_HTTP),
    "200 headers": (OK + b"X: x\r\n" * 200 + b"\r\n", NO_HTTP),
    "headers without end": (endless(OK, b"X: " + b"x" * 1000 + b"\r\n"), NO_HTTP),
    "a negative length": (file(length=-5), NO_NUMBER),
    "a length of letters": (OK + b"Content-Length: many\r\n\r\n" + EDGES, NO_NUMBER),
    "a length with a sign": (OK + b"Content-Length: +2\r\n\r\n" + EDGES, NO_NUMBER),
    "two lengths": (file(EDGES, b"Content-Length: 7"), f"{NO_HTTP}|{NO_NUMBER}"),
    "an empty length": (OK + b"Content-Length: \r\n\r\n" + EDGES, NO_NUMBER),
    "a length of 5,000 digits": (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", NO_NUMBER),
    "a length beyond any disk": (file(length=10**17), "the file has 100,000,000,000,000,000 bytes, and the disk has"),
    "fewer than announced": (file(length=len(EDGES) + 1), CUT),
    "nothing of what was announced": (file(b"", length=5), CUT),
    "reset in the middle": (reset(file(length=len(EDGES) + 1)), f"{CUT}|Connection reset"),
    "chunks without an end": (chunked(EDGES, end=b""), CUT),
    "half a chunk": (chunked(end=b"40\r\nabc"), CUT),
    "a chunk of a wrong length": (chunked(end=b"zz\r\nabc\r\n0\r\n\r\n"), CUT),
    "a chunk of a negative length": (chunked(end=b"-5\r\nabcde\r\n0\r\n\r\n"), CUT),
    "a chunk without its line": (chunked(end=b"3\r\nabcdef\r\n0\r\n\r\n"), CUT),
    "a long line of a chunk": (chunked(end=b"1" * 100_000), f"{CUT}|{NO_HTTP}"),
    "another transfer": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "encodes its answer in a way"),
    "compressed though not asked": (file(gzip.compress(EDGES), b"Content-Encoding: gzip"), "the server compresses the"),
    "compressed as it says": (file(EDGES, b"Content-Encoding: gzip"), "the server compresses the file"),
    "an unknown compression": (file(EDGES, b"Content-Encoding: br"), "the server compresses the file"),
    "a web page": (file(b"\n<!DOCTYPE html><p>Log in", b"Content-Type: text/html; charset=utf-8"), "sends a web page"),
    "nothing": (file(b""), "the file is empty"),
    "part of it": (status(b"206 Partial Content"), "the server answers 206 Partial Content"),
    **{f"status {line[:3].decode()}": (status(line), f"the server answers {line.decode()}") for line in (
        b"204 No Content", b"205 Reset Content", b"300 Multiple Choices", b"304 Not Modified", b"401 Unauthorized",
        b"403 Forbidden", b"404 Not Found", b"407 Proxy Authentication Required", b"410 Gone",
        f"416 {HTTPStatus(416).phrase}".encode(), b"429 Too Many Requests", b"500 Internal Server Error",
        b"503 Service Unavailable",
    )},
    "a redirect to nowhere": (status(b"302 Found"), "the server answers 302 Found"),
    "a redirect to itself": (to(b"?again"), "there are more than 10 redirects"),
    "a redirect to ftp": (to("ftp://127.0.0.1/a.tsv"), "only http and https addresses are fetched"),
    "a redirect to a file": (to("file:///etc/passwd"), "only http and https addresses are fetched"),
    "a redirect to data": (to("data:,a"), "only http and https addresses are fetched"),
    "a redirect with a password": (to(f"http://user:{SECRET}@127.0.0.1:1/a"), "a user and a password are not sent"),
    "a redirect to a bad port": (to("http://127.0.0.1:abc/"), "is no valid address"),
    "a redirect to a far port": (to("http://127.0.0.1:99999/"), "is no valid address"),
    "a redirect to a closed port": (to(f"http://127.0.0.1:1/?{SECRET}"), "no connection: Connection refused"),
    "a redirect to half a bracket": (to("http://[::1"), "is no valid address|can't be read"),
    "a redirect with control characters": (to(b"http://\x1b[31m/"), "is no valid address"),
    "a redirect of bad UTF-8": (to(b"http://\xff\xfe/"), "is no valid address"),
    "a redirect with a body for ever": (endless(to("/nowhere").replace(b"Content-Length: 0\r\n", b""), b"x" * 4096),
                                        "the server answers 404 Not Found"),
}  # fmt: skip
"""Answers that are not the file, and what is said of each."""
ENDLESS = {
    "silence": silent,
    "headers that drip": drip(OK, b"X"),
    "content that drips": drip(file(b"", length=10**6), b"x"),
    "chunks that drip": drip(chunked(end=b""), b"1\r\nx\r\n"),
    "continue for ever": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "redirects that drip": drip(b"HTTP/1.1 302 Found\r\n", b"L"),
}
"""Servers that never come to an end, slower than 1 KiB/s."""
ADDRESSES = {
    "http://127.0.0.1:abc/a.tsv": "is no valid address",
    "http://127.0.0.1:99999/a.tsv": "is no valid address",
    "http://127.0.0.1:-1/a.tsv": "is no valid address",
    "http://[::1/a.tsv": "is no valid address|one address is needed",
    "http://:80/a.tsv": "is no valid address",
    "http:///a.tsv": "is no valid address",
    "http://..127.0.0.1/a.tsv": "is no valid address",
    "http://*.localhost/a.tsv": "is no valid address",
    f"http://{'a' * 300}.localhost/a.tsv": "is no valid address|no connection",
    "http://\u2100.localhost/a.tsv": "is no valid address|no connection",
    "http://\udcff.localhost/a.tsv": "is no valid address",
    f"http://user:{SECRET}@127.0.0.1:1/a.tsv": "a user and a password are not sent over http",
    f"http://127.0.0.1:abc/a.tsv?key={SECRET}": "is no valid address",
    f"http://127.0.0.1:1/a b.tsv?key={SECRET}": "no connection: Connection refused",
    f"HTTP://127.0.0.1:1/a.tsv?key={SECRET}#x": "no connection: Connection refused",
    f"https://127.0.0.1:1/\x1b[31m.tsv?key={SECRET}": "no connection: Connection refused",
}
"""Addresses that are wrong, and what is said of each."""


@contextmanager
def serving(**more):
    """Within the block the servers listen: yields the address that a name is appended to."""
    answers = {**GOOD, **{name: content for name, (content, _) in BAD.items()}, **ENDLESS, **more}
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        threads = [threading.Thread(target=_serve, args=(listening, answers, stop))]
        threads[0].start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            stop.set()
            listening.shutdown(socket.SHUT_RDWR)
            threads[0].join()


def _serve(listening, answers, stop):
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                _answer(connection, answers, stop)


def _answer(connection, answers, stop):
    connection.settimeout(60)  # of a client that neither reads nor closes
    request = b""
    while b"\r\n\r\n" not in request:
        if not (piece := connection.recv(65536)):
            return
        request += piece
        if not request.startswith(b"GET "):
            connection.sendall(status(b"400 Bad Request"))
            return
    name = unquote(request.split()[1].decode().partition("?")[0]).removeprefix("/").removesuffix(".tsv")
    answer = answers.get(name, status(b"404 None"))
    if callable(answer):
        answer(connection, stop)
    else:
        connection.sendall(answer)
