"""How a trainer and a shard server prove to each other that they have the run's secret.

Guarantees:
- The secret is never sent, nor anything that depends on it alone. Keys for different ends are derived from it by
  HMAC-SHA256 under different names, with the run's name; so nothing of another run is of use here.
- *Token* (only without encryption): the first thing a client says is a number used once and its HMAC, for this server
  and rank. Without one that is right and new, a stranger gets not a single message to the server. A token that was used
  is refused, so what somebody recorded opens nothing.
- *Proof* (always): each end sends 32 random bytes and the HMAC of all that was said, the other's random bytes, both
  ranks' and names' among it, marked with its role. So neither end's words can be replayed or sent back to it, and the
  connection belongs to the rank that was proved. Whoever has the secret may claim any rank: it tells a run's nodes from
  strangers, not nodes from each other.
- With encryption (CURVE) only who has the secret knows the server's public key, without which nothing can be said.

Not encrypted, what is sent after the handshake can be read by whoever listens on the network between the nodes, and
changed by whoever can take over a TCP connection there.
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
    """HMAC-SHA256 of the parts, each with its length, so that no two lists of parts read alike."""
    state = hmac.new(key, digestmod="sha256")
    for part in parts:
        state.update(struct.pack("<Q", len(part)) + part)
    return state.digest()


@dataclass(frozen=True)
class Keys:
    """What is derived from the secret of a run for one server, by its name."""

    security: Security
    server: str

    def _key(self, purpose: bytes) -> bytes:
        return _mac(self.security.secret, _PREFIX, purpose, self.security.run.encode(), self.server.encode())

    def curve_secret(self) -> bytes:
        """The server's secret key for CURVE, 32 bytes."""
        return self._key(b"curve")

    def token(self, rank: int) -> str:
        """A new token for a client of that rank."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return (nonce + _mac(self._key(b"token"), b"%d" % rank, nonce)).hex()

    def proof(self, role: bytes, hello: bytes, server_nonce: bytes) -> bytes:
        return _mac(self._key(b"proof"), role, hello, server_nonce)


class Tokens:
    """Tells whether a token is right and new. Not safe for threads."""

    def __init__(self, keys: Keys):
        self._key, self._used = keys._key(b"token"), set[bytes]()

    def why_not(self, rank: bytes, token: bytes) -> str | None:
        """The reason to refuse it, or None: it is good, and from now on used."""
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
    rank: int
    limits: Limits
    body: bytes

    @staticmethod
    def new(rank: int, limits: Limits) -> Hello:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Hello(rank, limits, _HELLO.pack(rank, limits.max_bytes, limits.max_frames, limits.queue, nonce))

    @staticmethod
    def parse(body: bytes) -> Hello:
        """`body` has HELLO_BYTES bytes."""
        rank, max_bytes, max_frames, queue, _ = _HELLO.unpack(body)
        return Hello(rank, Limits(max_bytes=max_bytes, max_frames=max_frames, queue=queue), body)


class ClientSide:
    """What the client says."""

    def __init__(self, keys: Keys, rank: int, limits: Limits):
        self._keys = keys
        self.hello = Hello.new(rank, limits).body
        self.proved = False
        """Whether the server has the secret."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The proof for a server's challenge; None where the server hasn't proved that it has the secret."""
        nonce, given = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(given, self._keys.proof(b"server", self.hello, nonce)):
            return None
        self.proved = True
        return self._keys.proof(b"client", self.hello, nonce)


class ServerSide:
    """What the server says to one client."""

    def __init__(self, keys: Keys, hello: Hello):
        self._keys, self.hello = keys, hello
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> bytes:
        return self._nonce + self._keys.proof(b"server", self.hello.body, self._nonce)

    def accepts(self, proof: bytes) -> bool:
        return hmac.compare_digest(proof, self._keys.proof(b"client", self.hello.body, self._nonce))
