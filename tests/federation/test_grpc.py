"""The carrier by gRPC: hub and sites with mutual TLS between them, here in threads of one process.

As processes, killed and started again: `test_kills.py`.
"""

from __future__ import annotations

import datetime
import json
import threading
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deployed import Recorder
from federated import RESEARCHER, SITES, Sites, a_job, same_bits, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.federation.driving import FederationError, open_results
from fedmixtures.federation.one_machine import free_port
from fedmixtures.federation.watching import in_lines, look
from fedmixtures.federation.wire.frames import Frame

grpc = pytest.importorskip("grpc")
ROWS = site_rows((40, 40, 40, 40))


class Authority:
    """Certificates as NVFlare's tools make them: a name, and a role where it is not a site's."""

    def __init__(self, folder):
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.own = self._signed(self.name, self.key.public_key(), authority=True)

    def _signed(self, name, public, authority=False):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(authority, None), True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
            .sign(self.key, hashes.SHA256())
        )

    def kit(self, name: str, port: int, role: str = ""):
        from fedmixtures.federation.grpc.kit import Kit

        startup = self.folder / name / "startup"
        startup.mkdir(parents=True)
        key, whose = (
            ec.generate_private_key(ec.SECP256R1()),
            "server" if role == "server" else "client",
        )
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if role:
            parts.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
        pem = serialization.Encoding.PEM
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (startup / f"{whose}.key").write_bytes(key.private_bytes(pem, *plain))
        signed = self._signed(x509.Name(parts), key.public_key())
        (startup / f"{whose}.crt").write_bytes(signed.public_bytes(pem))
        (startup / "rootCA.pem").write_bytes(self.own.public_bytes(pem))
        target = {"servers": [{"service": {"target": f"localhost:{port}"}}]}
        (startup / "fed_client.json").write_text(json.dumps(target))
        return Kit(self.folder / name)


class Federation:
    """A hub, sites and a researcher of one process, which can be ended and started again."""

    def __init__(self, folder, sites: Sites):
        from fedmixtures.federation.grpc.driver import GrpcDriver

        self.sites, self.port = sites, free_port()
        self.authority = Authority(folder)
        self.kits = {name: self.authority.kit(name, self.port) for name in sites.rows}
        self.hub_kit = self.authority.kit("localhost", self.port, "server")
        researcher = self.authority.kit(RESEARCHER, self.port, "lead")
        self.running, self.server, self.pause = {}, None, 0.0
        self.listener = Recorder()
        self.driver = GrpcDriver(researcher.folder, self.listener)

    def start_hub(self):
        from fedmixtures.federation.grpc.hub import served

        self.server, self.hub = served(self.hub_kit, "127.0.0.1")

    def start(self, name: str):
        from fedmixtures.federation.grpc.site import Site

        site = Site(self.kits[name], lambda: self.loaded(name), lambda text: None)
        threading.Thread(target=site.run, daemon=True).start()
        self.running[name] = site

    def loaded(self, name: str):
        node = self.sites.started(name)
        answer = node.answer

        def slowly(frame):
            time.sleep(self.pause)
            return answer(frame)

        node.answer = slowly
        return node

    def stop_hub(self):
        self.server.stop(None).wait()

    def __enter__(self):
        self.start_hub()
        for name in self.kits:
            self.start(name)
        return self

    def __exit__(self, *_):
        self.driver.close()
        for site in self.running.values():
            site.close()
        self.stop_hub()

    def fit(self, job, **options):
        record = self.driver.fit(self.sites.signed(job), **{"patience": 60, **options})
        key, roster = self.sites.keys[RESEARCHER], self.sites.roster
        return record, open_results(job, record.results, key, roster)


@pytest.fixture
def expected(tmp_path):
    """A short fit without a network, and the job."""
    job = a_job(n_rounds=20, collector=RESEARCHER)
    sites = Sites(tmp_path / "alone", ROWS, share_result=True)
    sites.run(job)
    return job, sites.results(job)


def test_models_are_to_the_bit_those_without_a_network(tmp_path, expected):
    job, alone = expected
    with Federation(tmp_path, Sites(tmp_path / "sites", ROWS, share_result=True)) as federation:
        record, found = federation.fit(job)
        assert [segment["outcome"] for segment in record.segments] == ["completed"]
        assert all(same_bits(found[name], alone[name]) for name in SITES)
        seen = in_lines(look(federation.driver))
    assert seen[0] == f"connected: {', '.join(SITES)}"
    assert seen[1] == "test  completed"


def test_a_site_and_then_the_hub_are_lost_and_come_back(tmp_path, expected):
    job, alone = expected
    with Federation(tmp_path, Sites(tmp_path / "sites", ROWS, share_result=True)) as federation:

        def lose_a_site():
            federation.running["cork"].close()
            federation.start("cork")
            federation.listener.when(6, lose_the_hub)

        def lose_the_hub():
            federation.stop_hub()
            federation.start_hub()

        federation.pause = 0.15  # so that a round can be seen
        federation.listener.when(1, lose_a_site)
        record, found = federation.fit(job)
    *lost, last = [segment["outcome"] for segment in record.segments]
    assert last == "completed"
    assert set(lost) == {"lost"}
    assert 2 <= len(lost) <= 5  # on a busy machine a site may come back after the hub asked
    begun = [segment.get("first_round", 0) for segment in record.segments]
    assert begun[-1] >= 6  # from where all stood, not from the start
    assert all(same_bits(found[name], alone[name]) for name in SITES)


class WithOneSilent(Federation):
    """One site gives signs of life and, once units are known, sends nothing."""

    def loaded(self, name: str):
        node = super().loaded(name)
        answer = node.answer

        def mute(frame):
            reply = answer(frame)
            silent = (reply.head.get("round") or 0) >= 12 and "boxes" in reply.head
            return Frame(reply.head | {"boxes": []}) if silent else reply

        if name == SITES[-1]:
            node.answer = mute
        return node


@pytest.mark.slow
def test_the_others_finish_without_one_that_is_silent(tmp_path):
    quick = TrustThenPool(n_starts=1, n_folds=2, strengths=(1.0,), pool_steps=(1, 1, 1))
    job = a_job(quick, n_components=dict.fromkeys(SITES, 2), collector=RESEARCHER)
    sites = Sites(tmp_path / "sites", ROWS, share_result=True)
    with WithOneSilent(tmp_path, sites) as federation:
        record, found = federation.fit(job, stall_after=15.0)
    assert [segment["outcome"] for segment in record.segments] == ["lost", "completed"]
    assert record.segments[0]["silent"] == list(SITES[-1:])
    assert set(found) == set(SITES[:-1])


def test_who_has_no_right_certificate_is_not_let_in(tmp_path):
    from fedmixtures.federation.grpc.driver import GrpcDriver
    from fedmixtures.federation.grpc.kit import CONNECT, LOOK, SUBMIT

    with Federation(tmp_path, Sites(tmp_path / "sites", ROWS)) as federation:
        federation.driver.open(30)
        plain = grpc.insecure_channel(f"localhost:{federation.port}")
        bare = (federation.authority.folder / "cork" / "startup" / "rootCA.pem").read_bytes()
        nobody = grpc.secure_channel(
            f"localhost:{federation.port}", grpc.ssl_channel_credentials(bare)
        )
        other = Authority(tmp_path / "other").kit("cork", federation.port).channel()
        for channel in (plain, nobody, other):
            with channel, pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(LOOK)(b"", timeout=5)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        with federation.kits["cork"].channel() as site:
            with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
                site.unary_unary(LOOK)(b"")
            with pytest.raises(grpc.RpcError, match="a site submits no jobs"):
                list(site.unary_stream(SUBMIT)(b""))
        with pytest.raises(grpc.RpcError, match="does not connect as a site"):
            list(federation.driver.channel.stream_stream(CONNECT)(iter(())))
        with pytest.raises(ValueError, match="is the kit of the site 'cork'"):
            GrpcDriver(federation.kits["cork"].folder)


def test_a_refused_job_says_why(tmp_path):
    sites = Sites(tmp_path / "sites", ROWS, max_rounds=5)
    why = "12 rounds are asked for, 5 allowed"
    with Federation(tmp_path, sites) as federation, pytest.raises(FederationError, match=why):
        federation.fit(a_job(n_rounds=12))


def test_a_link_brings_each_message_once_over_streams_that_break(monkeypatch):
    from fedmixtures.federation.grpc import link

    monkeypatch.setattr(link, "QUIET", 0.05)
    a, b = link.Link(), link.Link()
    for i in range(20):
        a.put(bytes([i]))
    got = []
    for lasts in (7, 5, 20):  # a stream breaks after so many; what it had on its way is lost
        stream = a.stream()
        for number, data in zip(range(lasts), stream, strict=False):
            if number < lasts - 2 or lasts == 20:
                got += [content[0] for content in [b.came(data)] if content]
        a.came(next(b.stream()))  # receipts come late
        if len(got) == 20:
            break
    assert got == list(range(20))
    assert a.flushed(0.0)
    assert b.came(b"") is None
