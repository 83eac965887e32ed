"""Neighbour slots: every directed edge, in an order that depends on the nodes' labels alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np

from fedmixtures.graph.network import Network

Bits = TypeVar("Bits", np.ndarray, jax.Array, np.uint64)


@dataclass(frozen=True)
class Slots:
    """Directed edges sorted by receiver, then by the hash of the sender's label."""

    receiver: np.ndarray
    sender: np.ndarray
    weight: np.ndarray
    slot: np.ndarray
    reverse: np.ndarray
    """Index of the opposite directed edge."""
    start: np.ndarray
    """Index of each node's first edge."""
    degree: np.ndarray
    node_key: np.ndarray
    slot_key: np.ndarray

    @classmethod
    def of(cls, network: Network, hashes: np.ndarray, seed: int) -> Slots:
        """The slots of all nodes; `hashes` are those of their labels."""
        n, e = len(hashes), len(network.source)
        receiver = np.concatenate([network.source, network.target]).astype(np.int64)
        sender = np.concatenate([network.target, network.source]).astype(np.int64)
        rank = ranks(hashes)
        # One number for both keys: a tenth of the time of sorting by two.
        order = np.argsort(receiver * n + rank[sender])
        place = _inverse(order)
        degree = np.bincount(receiver, minlength=n)
        start = np.cumsum(degree) - degree
        reverse = np.concatenate([place[e:], place[:e]])[order]
        weight = np.concatenate([network.weight, network.weight])[order]
        receiver, sender = receiver[order], sender[order]
        slot = np.arange(2 * e) - start[receiver]
        node_key = mixed(mixed(np.uint64(seed)) ^ hashes)
        slot_key = mixed(node_key[receiver] ^ hashes[sender])
        return cls(receiver, sender, weight, slot, reverse, start, degree, node_key, slot_key)


def ranks(hashes: np.ndarray) -> np.ndarray:
    """Where each node would stand if all were sorted by the hash of their label."""
    return _inverse(np.argsort(hashes, kind="stable"))


def _inverse(order: np.ndarray) -> np.ndarray:
    """Where each entry of a permutation stands."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def mixed(bits: Bits) -> Bits:
    """Scatter 64-bit numbers so that related ones become unrelated (splitmix64's finaliser)."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))
