"""Other libraries to race against. Adding one is a class with the methods of `peer.Peer` and a line here."""

from collections.abc import Mapping
from types import MappingProxyType

from cactus.bench.peers.peer import Entry, Peer, Task
from cactus.bench.peers.transformers import TransformersPeer
from cactus.errors import CactusError

PEERS: Mapping[str, type[Peer]] = MappingProxyType({"transformers": TransformersPeer})


def find_peer(name: str) -> Peer:
    """The peer of that name; `CactusError` names those there are."""
    if name not in PEERS:
        raise CactusError(f"peer is {name!r}; {', '.join(PEERS)} are allowed")
    return PEERS[name]()


__all__ = ["PEERS", "Entry", "Peer", "Task", "find_peer"]
