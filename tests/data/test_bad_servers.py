"""http and https: the file as it lies there, or one line, whatever a server sends and however an address is written."""

import io
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import types
from urllib.parse import quote

import pytest

from marius_oac.cli.commands import main
from marius_oac.data.reading import download as download_module
from marius_oac.data.reading import http_get
from marius_oac.data.reading.download import download
from marius_oac.data.reading.http_get import Refused, get
from marius_oac.errors import InputError
from tests.data.web_servers import ADDRESSES, BAD, EDGES, ENDLESS, GOOD, OK, SECRET, drip, file, serving, to

OF_THE_CALLER = ("half a header", "nothing", "a length beyond any disk")
"""What the caller of the program refuses, or who reads the file."""


@pytest.fixture(scope="module")
def server():
    with serving() as address:
        yield address


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def got(address):
    """What the program writes: the line, and the file."""
    stream = io.BytesIO()
    get(address, stream)
    line, _, content = stream.getvalue().partition(b"\n")
    return json.loads(line), content


@pytest.mark.parametrize("name", GOOD)
def test_files_are_got_as_they_lie_there(server, name):
    about, content = got(server + name)
    assert content == EDGES and about["whole"]


@pytest.mark.parametrize("name", [name for name in BAD if name not in OF_THE_CALLER])
def test_what_is_not_the_file_is_refused_in_words_of_our_own(server, name):
    _, said = BAD[name]
    with pytest.raises(Refused, match=said) as caught:
        got(f"{server}{quote(name)}?key={SECRET}")
    text = str(caught.value)
    assert text.isprintable() and SECRET not in text and "127.0.0.1" not in text


@pytest.mark.parametrize("address", ADDRESSES)
def test_wrong_addresses(address):
    with pytest.raises(Refused, match=ADDRESSES[address]) as caught:
        got(address)
    assert SECRET not in str(caught.value)


def test_a_silent_server(server, monkeypatch):
    monkeypatch.setattr(http_get, "SILENT_SECONDS", 0.1)
    said = r"the server was silent for 0\.1 s"
    for name in ("silence", "a file that stops"):
        stopping = drip(file(b"", length=9), b"x", 60)
        with serving(**{"a file that stops": stopping}) as own, pytest.raises(Refused, match=said):
            got(own + quote(name))


def test_compressed_files_stay_compressed(server):
    with serving(**{"a.tsv.gz": file(b"gzip", b"Content-Encoding: gzip")}) as own:
        assert got(own + "a.tsv.gz")[1] == b"gzip"


def test_passwords_of_netrc_are_sent_nowhere(tmp_path, monkeypatch):
    seen = []

    def serve(connection, stop):
        connection.setblocking(False)
        connection.sendall(file())

    (tmp_path / "netrc").write_text(f"default login user password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    real = http_get.requests.adapters.HTTPAdapter.send

    def send(self, request, **options):
        seen.append(dict(request.headers))
        return real(self, request, **options)

    monkeypatch.setattr(http_get.requests.adapters.HTTPAdapter, "send", send)
    with serving(redirected=to("/plain")) as own:
        got(own + "redirected")
    assert len(seen) == 2 and not any("Authorization" in each for each in seen)
    assert all(each["Accept-Encoding"] == "identity" for each in seen)


def test_the_proxy_of_the_environment_is_asked_and_named_where_it_fails(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://user:{SECRET}@127.0.0.1:1")
    with pytest.raises(Refused, match="^no connection to the proxy: Connection refused$"):
        got("http://nowhere.invalid/a.tsv")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert got(server + "plain")[1] == EDGES
    monkeypatch.setenv("http_proxy", server)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(Refused, match="the server answers 404"):
        got("http://nowhere.invalid/a.tsv")


def test_tls_to_a_server_that_has_none(server):
    with pytest.raises(Refused, match="no connection: no TLS: "):
        got(server.replace("http:", "https:") + "plain")


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl, which makes a certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -subj /CN=localhost -days 2"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True
    )
    return folder


def tls_server(folder, answer):
    """Answers one connection after the other, as long as they come."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(65536)
                    secure.sendall(answer)
            except OSError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    return listening, thread


@pytest.mark.parametrize("trusted, scheme", [(False, "http"), (True, "http"), (True, "HTTP")])
def test_certificates_are_verified_and_no_redirect_leaves_tls(own_certificate, monkeypatch, trusted, scheme):
    listening, thread = tls_server(own_certificate, to(f"{scheme}://127.0.0.1:1/"))
    try:
        if trusted:
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(own_certificate / "cert"))
        said = "from https to http" if trusted else "the certificate is not trusted: self"
        with pytest.raises(Refused, match=said):
            got(f"https://127.0.0.1:{listening.getsockname()[1]}/a.tsv")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_a_file_of_unknown_length_is_told(server, tmp_path, caplog):
    with serving(unknown=OK + b"\r\n" + EDGES) as own:
        download(own + "unknown", tmp_path / "a", called="there")
    assert (tmp_path / "a").read_bytes() == EDGES
    assert [each.getMessage() for each in caplog.records] == [
        "there: the server did not say how long the file is: part of it may be missing"
    ]


def test_room_on_the_disk(server, tmp_path, monkeypatch):
    for name, free, said in [
        ("plain", 300, f"the file has {len(EDGES):,} bytes, and the disk has 300 bytes free"),
        (
            "chunked",
            2 * len(EDGES) - 1,
            "it is not known how long the file is, and more came than half of what the disk had free",
        ),
    ]:
        usage = types.SimpleNamespace(free=free)
        monkeypatch.setattr(download_module.shutil, "disk_usage", lambda path, usage=usage: usage)
        with pytest.raises(InputError, match=f"^there: .*{said}$"):
            download(server + name, tmp_path / "a", called="there")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ENDLESS)
def test_servers_that_are_too_slow(server, tmp_path, name):
    with pytest.raises(InputError, match=r"^there: in 1 s less than 1 KiB/s came$"):
        download(server + quote(name), tmp_path / "a", called="there", patience=1.0)
    assert os.listdir(tmp_path) == []


def paced(monkeypatch, script):
    """What comes where `script` says: seconds until a piece, its bytes, and the seconds that it takes to be written."""
    clock, (read, write) = [0.0], os.pipe()

    class Poll:
        def register(self, *_):
            pass

        def poll(self, limit):
            seconds, size = script[0][:2]
            if seconds > limit / 1000 + 1e-9:
                script[0] = (seconds - limit / 1000, *script[0][1:])
                clock[0] += limit / 1000
                return []
            clock[0] += seconds
            os.write(write, bytes(size))
            return [1]

    stdout = os.fdopen(read, "rb", buffering=0)

    class Process:
        pass

    Process.stdout = stdout
    monkeypatch.setattr(download_module.select, "poll", Poll)
    monkeypatch.setattr(download_module.time, "monotonic", lambda: clock[0])
    came = 0
    with stdout:
        try:
            for piece in download_module._pieces(Process, 60.0, "there"):
                came += len(piece)
                clock[0] += script.pop(0)[2]
                if not script:
                    break
        finally:
            os.close(write)
    return came


def test_the_rate_is_that_of_60_seconds_without_those_of_the_disk(monkeypatch):
    assert paced(monkeypatch, [(29, 31 << 10, 0)] * 9) == 9 * 31 << 10
    assert paced(monkeypatch, [(1, 1 << 10, 500)] * 9) == 9 << 10
    assert paced(monkeypatch, [(1, 60 << 10, 0), (58, 1, 0), (55, 60 << 10, 0)]) == (120 << 10) + 1
    for script in (
        [(29, 29 << 10, 0)] * 9,
        [(61, 100 << 10, 0)],
        [(1, 62 << 10, 0), (60, 1, 0), (59, 1, 0), (9, 1, 0)],
    ):
        with pytest.raises(InputError, match="^there: in 60 s less than 1 KiB/s came$"):
            paced(monkeypatch, script)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_download_that_is_stopped(server, tmp_path, number):
    code = "import sys; from pathlib import Path; from marius_oac.data.reading.download import download\n"
    code += "download(sys.argv[1], Path('a'))"
    arrived, left = threading.Event(), threading.Event()

    def serve(connection, stop):
        connection.sendall(file(EDGES, length=10**6))
        arrived.set()
        try:
            connection.recv(1)
        finally:
            left.set()

    with serving(**{"stopped": serve}) as own:
        process = subprocess.Popen([sys.executable, "-c", code, own + "stopped"], cwd=tmp_path, stderr=subprocess.PIPE)
        assert arrived.wait(60)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert left.wait(20), "the process that downloads lives on"
    assert process.returncode == -number
    assert number == signal.SIGKILL or os.listdir(tmp_path) == []


@pytest.mark.parametrize("module", ["json", "marius_oac"])
def test_the_program_takes_no_module_from_the_present_folder(server, tmp_path, monkeypatch, module):
    (tmp_path / f"{module}.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    download(server + "plain", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == EDGES


def test_paths_with_blanks_and_other_letters(tmp_path):
    with serving(**{"ä b": file()}) as own:
        for number, name in enumerate(("ä b.tsv", "%C3%A4%20b.tsv")):
            assert main(["prepare", own + name, "--out", str(tmp_path / str(number))]) == 0


@pytest.mark.slow
def test_each_is_one_line_of_the_command(server, tmp_path, capsys):
    addresses = {f"{server}{quote(name)}.tsv?key={SECRET}": said for name, (_, said) in BAD.items()}
    for address, said in {**addresses, **ADDRESSES}.items():
        assert main(["prepare", address, "--out", str(tmp_path / "g")]) == 2, address
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("marius-oac: "), (address, lines)
        assert lines[0].isprintable() and SECRET not in lines[0]
        pattern = pytest.RaisesExc(Exception, match=said)
        assert pattern.matches(Exception(lines[0])), (address, lines)
        assert os.listdir(tmp_path) == []
