r"""Sums over sites of which nobody learns a summand: pairwise masks in fixed point modulo $2^{64}$.

Member i sends $y_i = x_i + \sum_{j > i} m_{ij} - \sum_{j < i} m_{ij}$, where $m_{ij}$ is a stream
of 64-bit numbers from a secret that only i and j know. In the sum of all $y_i$ the masks cancel, to
the bit. Anything short of it is uniform noise, as long as two members are not in league with
whoever looks. A sum that is tried again, or with other members, has other masks; so has one of
another run, since every member gives a number of its own to it.

Nobody sees a share before all have committed to theirs: to its digest, which nobody else can say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FRACTION_BITS = 24
"""Numbers are multiples of $2^{-24}$."""
LARGEST = 2.0**29
"""Magnitude that a number of a share may have: the total of a thousand members fits."""
SMALLEST_GROUP = 3
"""Sums over fewer sites are not opened: each could take its own share off."""


class SumRefused(ValueError):
    """A sum that this site takes no part in, or a total that cannot be right."""


@dataclass(frozen=True)
class SumName:
    """Which sum: no two have the same masks."""

    job: str
    run: str
    """Digest of what every site has drawn for this run of the job: `run_of`."""
    number: int
    attempt: int
    members: tuple[str, ...]

    def encode(self) -> bytes:
        """One text for one sum."""
        return self._text

    @cached_property
    def _text(self) -> bytes:
        plain = [self.job, self.run, self.number, self.attempt, sorted(self.members)]
        return b"fedmixtures sum v2" + json.dumps(plain).encode()


def run_of(job: str, drawn: Mapping[str, bytes]) -> str:
    """What tells this run of a job from any other: digest of what each of its sites has drawn."""
    plain = [job, sorted((site, number.hex()) for site, number in drawn.items())]
    return hashlib.sha256(b"fedmixtures run v1" + json.dumps(plain).encode()).hexdigest()


def commitment(name: SumName, site: str, numbers: np.ndarray) -> bytes:
    """What a site says of its masked share before it shows it: no other share has the same."""
    content = name.encode() + json.dumps(site).encode() + numbers.astype("<u8").tobytes()
    return hashlib.sha256(b"fedmixtures commitment v1" + content).digest()


def to_fixed(values: Any) -> np.ndarray:
    """Numbers as 64-bit integers modulo 2^64; `SumRefused` for what does not fit."""
    values = np.asarray(values, dtype=np.float64)
    if not (np.abs(values) <= LARGEST).all():  # NaN is not
        raise SumRefused(
            "a number of this site's share is not finite or too large for a sum. Give the job a "
            "shift and a scale with which features are of order one"
        )
    return np.rint(values * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64)


def from_fixed(total: np.ndarray) -> np.ndarray:
    """The numbers that stand for these integers."""
    return total.view(np.int64) * 2.0**-FRACTION_BITS


def mask(secret: bytes, name: SumName, n: int) -> np.ndarray:
    """`n` uniform 64-bit numbers that both ends of a pair work out alike."""
    key = HKDF(hashes.SHA256(), 32, salt=None, info=name.encode()).derive(secret)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * n))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def masked(values: Any, site: str, secrets: Mapping[str, bytes], name: SumName) -> np.ndarray:
    """A site's share, flat, as it may be seen by anybody.

    `secrets` holds what the site shares with each other member.
    """
    if set(secrets) | {site} != set(name.members) or site in secrets:
        raise SumRefused("the members of the sum are not those whose secrets are here")
    if len(name.members) < SMALLEST_GROUP:
        raise SumRefused(f"sums over fewer than {SMALLEST_GROUP} sites are not opened")
    share = to_fixed(np.ravel(values)).copy()
    for other, secret in secrets.items():
        stream = mask(secret, name, len(share))
        share = share + stream if site < other else share - stream  # wraps around, as it should
    return share


def total(shares: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of all members' shares."""
    added = shares[0].copy()
    for share in shares[1:]:
        added = added + share
    return from_fixed(added)


class OpenedSets:
    """Differencing: over the same rows, member sets differ by nobody or by at least three sites."""

    def __init__(self, sets: Sequence[frozenset[str]] = ()):
        self.sets = list(sets)

    def admit(self, members: frozenset[str]) -> None:
        """Take note of a sum over these members, or refuse it."""
        for known in self.sets:
            for more in (members - known, known - members):
                if members != known and 0 < len(more) < SMALLEST_GROUP:
                    raise SumRefused(
                        "a sum over these members, less one that was opened before, would tell "
                        f"about {len(more)} of them alone"
                    )
        if members not in self.sets:
            self.sets.append(members)
