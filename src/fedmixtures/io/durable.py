"""One way to write a file: whole or as it was before, also when the power fails meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write beside the file, sync, put in its place, sync the folder."""
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
