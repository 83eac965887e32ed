"""The roster: public keys of sites and of researchers, pinned at every site under their roles."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fedmixtures.federation.wire.sealing import fingerprint
from fedmixtures.io.storage import write_durably

Role = Literal["site", "researcher"]


class NotOnRoster(ValueError):
    """A name that the roster does not hold in the role asked for."""


@dataclass(frozen=True)
class Roster:
    """Who is who: the hub cannot add to it, change a key, or make a researcher a site.

    Sites send and receive models; researchers sign jobs and may collect final models, where a site
    allows that. A name has one role.
    """

    sites: Mapping[str, str]
    """Public sealing keys (64 hexadecimal digits)."""
    researchers: Mapping[str, str] = field(default_factory=dict)
    """Identities (128 hexadecimal digits): sealing key and signing key."""

    def __post_init__(self):
        both = sorted(set(self.sites) & set(self.researchers))
        if both:
            raise ValueError(f"the roster names {both[0]!r} as a site and as a researcher.")
        for names, n_bytes in ((self.sites, 32), (self.researchers, 64)):
            for name, key in names.items():
                _check_key(name, key, n_bytes)

    def sealing_key(self, name: str, role: Role) -> str:
        """The key to seal boxes for `name` with, if it has that role."""
        keys = self.sites if role == "site" else self.researchers
        if name not in keys:
            others = self.researchers if role == "site" else self.sites
            known = ", which it knows in another role" if name in others else ""
            raise NotOnRoster(f"the roster has no {role} {name!r}{known}")
        return keys[name][:64]

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read the TOML file that `save` writes."""
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        given = {}
        for section in ("sites", "researchers"):
            entries = found.pop(section, {})
            keys = [entry.get("key") for entry in entries.values() if isinstance(entry, dict)]
            if len(keys) != len(entries) or not all(isinstance(key, str) for key in keys):
                raise ValueError(f"[{section}] of {str(path)!r} must hold entries with a `key`.")
            given[section] = {name: entry["key"] for name, entry in entries.items()}
        if found:
            raise ValueError(f"{str(path)!r} must hold [sites] and [researchers] alone.")
        return cls(**given)

    def save(self, path: str | Path) -> None:
        """Write the roster; each key with its fingerprint."""
        import tomli_w

        mark = lambda key: {"key": key, "fingerprint": fingerprint(key)}
        plain = {
            "sites": {name: mark(key) for name, key in self.sites.items()},
            "researchers": {name: mark(key) for name, key in self.researchers.items()},
        }
        write_durably(Path(path), tomli_w.dumps(plain).encode())


def pin(path: Path, name: str, key: str, role: Role) -> str:
    """Add a name to a roster file; a key or role that is pinned is never replaced."""
    known = Roster.load(path) if path.exists() else Roster({})
    section = "sites" if role == "site" else "researchers"
    others = known.researchers if role == "site" else known.sites
    own = getattr(known, section)
    if name in others or own.get(name, key) != key:
        raise ValueError(
            f"the roster already holds another key or role of {name!r}. If its owner has really "
            f"made a new one, take the old entry out of {str(path)!r} yourself."
        )
    given = {"sites": known.sites, "researchers": known.researchers, section: {**own, name: key}}
    Roster(**given).save(path)
    return fingerprint(key)


def _check_key(name: str, key: str, n_bytes: int) -> None:
    try:
        raw = bytes.fromhex(key)
        X25519PublicKey.from_public_bytes(raw[:32])
        right = len(raw) == n_bytes
    except (ValueError, TypeError):
        right = False
    if not right:
        raise ValueError(
            f"the roster's key of {name!r} is no public key. Give {2 * n_bytes} hexadecimal digits "
            f"for a {'site' if n_bytes == 32 else 'researcher'}."
        )
