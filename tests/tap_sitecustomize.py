"""Runs inside the hub's processes: keeps all they receive, after TLS has been taken off."""

import os

from nvflare.fuel.f3.sfm import conn_manager

_received = conn_manager.SfmFrameReceiver.process_frame
_folder = os.environ["FEDERATION_TAP"]


def _kept(self, frame):
    with open(os.path.join(_folder, str(os.getpid())), "ab") as file:
        file.write(bytes(frame) + b"\x00" * 8)
    return _received(self, frame)


conn_manager.SfmFrameReceiver.process_frame = _kept
