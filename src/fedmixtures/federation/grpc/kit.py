"""What this carrier needs of a kit: the same kits as NVFlare's, certificates and the hub's address.

Name and role of whoever speaks are those of the certificate, which the hub's authority has signed;
nobody is believed a name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

SERVICE = "fedmixtures.Hub"
CONNECT, SUBMIT, LOOK = (f"/{SERVICE}/{name}" for name in ("Connect", "Submit", "Look"))
SITE, RESEARCHER, HUB = "site", "researcher", "hub"
ROLES = {"server": HUB, "lead": RESEARCHER, "project_admin": RESEARCHER}
"""By the role in a certificate; one without is a site's."""
MOST_BYTES = 2**25
"""Of one message."""
OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", MOST_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class Kit:
    """A kit's folder, as `federate join` and `federate init-hub` leave it."""

    folder: Path

    @property
    def _startup(self) -> Path:
        return self.folder / "startup"

    def credentials(self) -> grpc.ChannelCredentials:
        """Of a site or a researcher: its own certificate, and the authority it believes."""
        authority, key, chain = self._files("client")
        return grpc.ssl_channel_credentials(authority, key, chain)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of the hub; whoever has no certificate of its authority is not let in."""
        authority, key, chain = self._files("server")
        return grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)

    def _files(self, whose: str) -> tuple[bytes, bytes, bytes]:
        paths = [self._startup / f for f in ("rootCA.pem", f"{whose}.key", f"{whose}.crt")]
        try:
            authority, key, chain = (path.read_bytes() for path in paths)
        except FileNotFoundError as missing:
            raise ValueError(
                f"{str(self.folder)!r} is no kit of this kind: {missing.filename} is missing."
            ) from None
        return authority, key, chain

    @property
    def name(self) -> tuple[str, str]:
        """Name and role in the kit's own certificate."""
        if (self._startup / "server.crt").is_file():
            return identity(self._files("server")[2])[0], HUB
        return identity(self._files("client")[2])

    @property
    def hub(self) -> str:
        """Name and port of the hub."""
        for found in ("fed_client.json", "fed_server.json"):
            if (self._startup / found).is_file():
                plain = json.loads((self._startup / found).read_text())
                return plain["servers"][0]["service"]["target"]
        plain = json.loads((self._startup / "fed_admin.json").read_text())["admin"]
        return f"{plain['host']}:{plain['port']}"

    def channel(self) -> grpc.Channel:
        """A connection to the hub, which is made when it is used."""
        return grpc.secure_channel(self.hub, self.credentials(), OPTIONS)


def identity(certificate: bytes) -> tuple[str, str]:
    """Name and role that a certificate (PEM) is of."""
    subject = x509.load_pem_x509_certificate(certificate).subject
    entry = lambda oid: "".join(str(part.value) for part in subject.get_attributes_for_oid(oid))
    return entry(NameOID.COMMON_NAME), ROLES.get(entry(NameOID.UNSTRUCTURED_NAME), SITE)


def caller(context: Any) -> tuple[str, str]:
    """Name and role of who calls the hub, by the certificate of the connection."""
    return identity(context.auth_context()["x509_pem_cert"][0])
