"""What a node keeps on disk: its state after every round, and a log of what left it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.federation.wire.frames import Frame, FrameError

STATE_BYTES = 2**30


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that survives a power cut: whole, or as it was before."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(scratch, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        scratch.unlink(missing_ok=True)


@dataclass(frozen=True)
class Saved:
    """A node after some round: its state, and the last message of each neighbour with its round."""

    round: int
    state: tuple[np.ndarray, ...]
    heard: Mapping[str, tuple[int, tuple[np.ndarray, ...] | None]]


class Store:
    """Checkpoints of one job at one node, by round; the last `keep` of them."""

    def __init__(self, folder: Path, fingerprint: str, keep: int):
        self.folder, self.fingerprint, self.keep = folder, fingerprint, keep
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # After a fault an old process may still be about: the last to come owns the folder.
        self.token = os.urandom(16).hex()
        write_durably(folder / "owner", self.token.encode())

    def is_ours(self) -> bool:
        """Whether no other process has taken the job over."""
        try:
            return (self.folder / "owner").read_text() == self.token
        except OSError:
            return False

    def rounds(self) -> list[int]:
        """Rounds that can be read back."""
        found = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.fmx"))
        return sorted(int(text) for text in found if text.isdigit())

    def write(self, saved: Saved) -> None:
        """Keep this round; forget what no site can ask for any more."""
        arrays = {f"state.{i:04d}": array for i, array in enumerate(saved.state)}
        heard = {}
        for number, (source, (source_round, message)) in enumerate(saved.heard.items()):
            heard[source] = [source_round, None if message is None else len(message), number]
            for i, array in enumerate(message or ()):
                arrays[f"heard.{number:04d}.{i:04d}"] = array
        head = {"round": saved.round, "fingerprint": self.fingerprint, "heard": heard}
        content = Frame(head, arrays).encode()
        write_durably(self._path(saved.round), hashlib.sha256(content).digest() + content)
        for old in self.rounds():
            if old <= saved.round - self.keep:
                self._path(old).unlink(missing_ok=True)

    def read(self, round: int) -> Saved | None:
        """The round as it was; None if it is not there, damaged, or of other rows."""
        try:
            content = self._path(round).read_bytes()
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                return None
            frame = Frame.decode(content[32:], STATE_BYTES)
        except (OSError, FrameError):
            return None
        if frame.head["fingerprint"] != self.fingerprint or frame.head["round"] != round:
            return None
        arrays = frame.arrays
        state = tuple(array for name, array in arrays.items() if name.startswith("state."))
        heard = {}
        for source, (source_round, length, number) in frame.head["heard"].items():
            parts = [arrays[f"heard.{number:04d}.{i:04d}"] for i in range(length or 0)]
            heard[source] = (source_round, None if length is None else tuple(parts))
        return Saved(round, state, heard)

    @classmethod
    def look(cls, folder: Path) -> Saved:
        """The last round in a folder, whoever owns it."""
        path = max(folder.glob("round-*.fmx"))
        store = cls.__new__(cls)
        store.folder = folder
        store.fingerprint = Frame.decode(path.read_bytes()[32:], STATE_BYTES).head["fingerprint"]
        saved = store.read(int(path.stem.removeprefix("round-")))
        if saved is None:
            raise ValueError(f"{str(path)!r} is damaged.")
        return saved

    def forget_after(self, round: int) -> None:
        """Drop later rounds: the federation has gone back to this one."""
        for later in self.rounds():
            if later > round:
                self._path(later).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.fmx"


class LocalLog:
    """Line by line what left the site and what it refused, without values. It stays here."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, event: str, **what: Any) -> None:
        """One line of JSON."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": moment, "event": event, **what}) + "\n")
