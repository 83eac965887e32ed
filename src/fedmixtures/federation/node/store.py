"""What a node keeps on disk: states, what it answered to which messages, and a log of what left."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.federation.wire.frames import Frame, FrameError
from fedmixtures.io.storage import read_arrays, write_arrays, write_durably
from fedmixtures.mixture.mixture import Mixture

KIND = "node state"
PARTS = ("weights", "means", "covariances")
Inputs = Mapping[str, tuple[int, str]]
"""The messages a round was computed from: source round and digest, by source."""


@dataclass(frozen=True)
class NodeState:
    """A node after some round: its state, and the last message of each neighbour with its round."""

    round: int
    state: tuple[np.ndarray, ...]
    heard: Mapping[str, tuple[int, Mixture | None]]


class Store:
    """One job at one node, by round; states and boxes of the last `keep` rounds."""

    def __init__(self, folder: Path, fingerprint: str, keep: int):
        self.folder, self.fingerprint, self.keep = folder, fingerprint, keep
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # After a fault an old process may still be about: the last to come owns the folder.
        self.token = os.urandom(16).hex()
        write_durably(folder / "owner", self.token.encode())

    def nonce(self) -> bytes:
        """A number drawn for this job on these rows: the same until the record is gone."""
        path = self.folder / f"nonce-{self.fingerprint[:32]}"
        if not path.is_file():
            write_durably(path, os.urandom(32))
        return hashlib.sha256(path.read_bytes() + self.fingerprint.encode()).digest()

    def is_ours(self) -> bool:
        """Whether no other process has taken the job over."""
        try:
            return (self.folder / "owner").read_text() == self.token
        except OSError:
            return False

    def rounds(self) -> list[int]:
        """Rounds whose state can be read back."""
        return [t for t in _numbers(self.folder, "round") if self.read(t) is not None]

    def write(self, after: NodeState) -> None:
        """Keep this round; forget what no site can ask for any more."""
        arrays = {f"state.{i:04d}": array for i, array in enumerate(after.state)}
        heard: dict[str, Any] = {}
        for source, (t, mixture) in after.heard.items():
            heard[source] = [t, mixture is not None]
            if mixture is not None:
                for name, part in zip(PARTS, mixture.parts, strict=True):
                    arrays[f"heard.{source}.{name}"] = np.asarray(part)
        header = {"kind": KIND, "round": after.round, "fingerprint": self.fingerprint}
        header |= {"heard": heard, "digest": _digest_of(arrays)}
        write_arrays(self._path("round", after.round), arrays, header)
        for kind in ("round", "sent"):
            for old in _numbers(self.folder, kind):
                if old <= after.round - self.keep:
                    self._path(kind, old).unlink(missing_ok=True)

    def read(self, t: int) -> NodeState | None:
        """The state after round `t`; None if it is not there, damaged, or of other rows."""
        try:
            arrays, header = read_arrays(self._path("round", t), KIND)
        except (OSError, ValueError):
            return None
        if header["fingerprint"] != self.fingerprint or header["round"] != t:
            return None
        return None if header["digest"] != _digest_of(arrays) else _node_state(arrays, header)

    # No second answer: what a round was computed from and what left after it are on disk before the
    # boxes leave, for the whole job, and hold whatever anybody says about restarting.

    def note(
        self,
        t: int,
        inputs: Inputs | None = None,
        released: str | None = None,
        left: Sequence[str] | None = None,
    ) -> None:
        """Round `t` was computed from these messages; this content left after it; these sites did.

        Where sites left, what was noted of later rounds holds no more.
        """
        line: dict[str, Any] = {"rows": self.fingerprint, "round": t}
        line |= {} if left is None else {"left": list(left)}
        line |= {} if inputs is None else {"inputs": {s: list(i) for s, i in inputs.items()}}
        line |= {} if released is None else {"released": released}
        with open(self.folder / "answers.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def answers(self) -> tuple[dict[int, Inputs], dict[int, str], dict[int, list[str]]]:
        """By round: what it was computed from, the digest of what left after it, sites that did."""
        inputs: dict[int, Inputs] = {}
        released: dict[int, str] = {}
        leaves: dict[int, list[str]] = {}
        for line in json_lines(self.folder / "answers.jsonl"):
            if line["rows"] == self.fingerprint:
                if "left" in line:
                    t = line["round"]
                    inputs = {r: found for r, found in inputs.items() if r < t}
                    released = {r: found for r, found in released.items() if r <= t}
                    # Who had left further on is away from here on, too.
                    later = [name for r in sorted(leaves) if r >= t for name in leaves[r]]
                    leaves = {r: names for r, names in leaves.items() if r < t}
                    leaves[t] = later + line["left"]
                if "inputs" in line:
                    inputs[line["round"]] = {s: (r, d) for s, (r, d) in line["inputs"].items()}
                if "released" in line:
                    released[line["round"]] = line["released"]
        return inputs, released, leaves

    def forget(self, t: int) -> None:
        """What was heard in round `t` and later, and sent after it."""
        for kind, first in (("heard", t), ("sent", t + 1)):
            for old in _numbers(self.folder, kind):
                if old >= first:
                    self._path(kind, old).unlink(missing_ok=True)

    def keep_boxes(self, t: int, boxes: Mapping[str, bytes], kind: str = "sent") -> None:
        """Boxes of round `t` by destination, as they are about to leave; or ``heard`` contents."""
        content = Frame({"fingerprint": self.fingerprint}, boxes=dict(boxes)).encode()
        write_durably(self._path(kind, t), content)

    def boxes(self, t: int, kind: str = "sent") -> dict[str, bytes] | None:
        """The boxes that left after round `t`, if they are still here; or what was heard in it."""
        try:
            frame = Frame.decode(self._path(kind, t).read_bytes(), 2**30)
        except (OSError, FrameError):
            return None
        return frame.boxes if frame.head.get("fingerprint") == self.fingerprint else None

    def _path(self, kind: str, t: int) -> Path:
        ending = "safetensors" if kind == "round" else "fmx"
        return self.folder / f"{kind}-{t:06d}.{ending}"


def digest(content: bytes) -> str:
    """What stands for a message in the records."""
    return hashlib.sha256(content).hexdigest()


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Records of a file; a last line that a crash has torn was never acted upon."""
    found = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def _numbers(folder: Path, kind: str) -> list[int]:
    found = (path.stem.removeprefix(f"{kind}-") for path in folder.glob(f"{kind}-*"))
    return sorted(int(text) for text in found if text.isdigit())


def _digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    content = hashlib.sha256()
    for name in sorted(arrays):
        content.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return content.hexdigest()


def _node_state(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> NodeState:
    state = tuple(arrays[name] for name in sorted(arrays) if name.startswith("state."))
    heard = {
        source: (t, Mixture(*(arrays[f"heard.{source}.{p}"] for p in PARTS)) if spoke else None)
        for source, (t, spoke) in header["heard"].items()
    }
    return NodeState(header["round"], state, heard)


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
