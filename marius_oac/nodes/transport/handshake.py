"""The handshake: a trainer and a shard server prove to each other that they have the run's secret.

Guarantees:
- The secret is never sent, nor anything that depends on it alone. Keys for each purpose are derived from it by
  HMAC-SHA256, with the run's name, so nothing of another run is of use here.
- *Token* (only without encryption): the first thing a client sends is a nonce and its HMAC, for this server and rank.
  Without a valid new token a stranger gets no message to the server. A used token is refused, so a recorded one is of
  no use.
- *Proof* (always): each end sends 32 random bytes and the HMAC of all that was said, including the other's random
  bytes, the rank, the server's name and its own role. So no proof can be replayed or reflected, and the connection
  belongs to the rank that was proved. A node with the secret may claim any rank: the secret distinguishes the run's
  nodes from strangers, not from each other.
- With encryption (CURVE) only nodes with the secret know the server's public key, without which nothing can be sent.

Without encryption, messages after the handshake can be read by anybody who listens on the network between the nodes,
and changed by anybody who can take over a TCP connection there.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass

from marius_oac.nodes.transport.contract import Limits, Security

NONCE_BYTES = 32
_PREFIX = b"marius-oac transport 1"
_HELLO = struct.Struct("<IQII32s")  # rank, limits: max_bytes, max_frames, queue; the client's random bytes
HELLO_BYTES = _HELLO.size
MAC_BYTES = 32


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Returns the HMAC-SHA256 of the parts, each after its length, so that different lists give different inputs."""
    state = hmac.new(key, digestmod="sha256")
    for part in parts:
        state.update(struct.pack("<Q", len(part)) + part)
    return state.digest()


@dataclass(frozen=True)
class Keys:
    """Derives keys from the secret of a run, for the server of this name."""

    security: Security
    server: str

    def _key(self, purpose: bytes) -> bytes:
        return _mac(self.security.secret, _PREFIX, purpose, self.security.run.encode(), self.server.encode())

    def curve_secret(self) -> bytes:
        """Returns the server's secret key for CURVE, 32 bytes."""
        return self._key(b"curve")

    def token(self, rank: int) -> str:
        """Returns a new token for a client of that rank."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return (nonce + _mac(self._key(b"token"), b"%d" % rank, nonce)).hex()

    def proof(self, role: bytes, hello: bytes, server_nonce: bytes) -> bytes:
        """Returns the proof, `MAC_BYTES` bytes, of the end with this role, b"server" or b"client"."""
        return _mac(self._key(b"proof"), role, hello, server_nonce)


class Tokens:
    """Checks whether tokens are valid and new. Not thread-safe."""

    def __init__(self, keys: Keys):
        self._key, self._used = keys._key(b"token"), set[bytes]()

    def why_not(self, rank: bytes, token: bytes) -> str | None:
        """Returns the reason to refuse a token; None: it is valid, and counts as used from now on."""
        try:
            data = bytes.fromhex(token.decode("ascii"))
        except ValueError:
            return "malformed token"
        nonce, given = data[:NONCE_BYTES], data[NONCE_BYTES:]
        if not hmac.compare_digest(given, _mac(self._key, rank, nonce)):
            return "wrong secret"
        if nonce in self._used:
            return "replayed token"
        self._used.add(nonce)
        return None


@dataclass(frozen=True)
class Hello:
    """A client's first message: its rank and limits; `body` is the message itself, `HELLO_BYTES` bytes."""

    rank: int
    limits: Limits
    body: bytes

    @staticmethod
    def new(rank: int, limits: Limits) -> Hello:
        """Returns a message with new random bytes."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Hello(rank, limits, _HELLO.pack(rank, limits.max_bytes, limits.max_frames, limits.queue, nonce))

    @staticmethod
    def parse(body: bytes) -> Hello:
        """Parses a message of `HELLO_BYTES` bytes."""
        rank, max_bytes, max_frames, queue, _ = _HELLO.unpack(body)
        return Hello(rank, Limits(max_bytes=max_bytes, max_frames=max_frames, queue=queue), body)


class ClientSide:
    """The client's side of a handshake."""

    def __init__(self, keys: Keys, rank: int, limits: Limits):
        self._keys = keys
        self.hello = Hello.new(rank, limits).body
        self.proved = False
        """Whether the server has proved that it has the secret."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Returns the proof for a server's challenge; None if the challenge doesn't prove that it has the secret."""
        nonce, given = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(given, self._keys.proof(b"server", self.hello, nonce)):
            return None
        self.proved = True
        return self._keys.proof(b"client", self.hello, nonce)


class ServerSide:
    """The server's side of a handshake with one client."""

    def __init__(self, keys: Keys, hello: Hello):
        self._keys, self.hello = keys, hello
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> bytes:
        """Returns the server's random bytes and its proof."""
        return self._nonce + self._keys.proof(b"server", self.hello.body, self._nonce)

    def accepts(self, proof: bytes) -> bool:
        """Whether the client's proof is valid."""
        return hmac.compare_digest(proof, self._keys.proof(b"client", self.hello.body, self._nonce))
