"""How real sites join: keys stay where they are made, kits are closed to all but our executor."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedmixtures.federation.wire.roster import Roster, pin
from fedmixtures.federation.wire.sealing import SiteKey, fingerprint

pytest.importorskip("nvflare")
pytestmark = pytest.mark.silos


def test_a_hub_and_a_hospital(tmp_path, monkeypatch):
    from fedmixtures.federation.node.node import Node
    from fedmixtures.federation.nvflare import enrol
    from fedmixtures.federation.nvflare.kits import EXECUTOR, check_site

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    hub, mark = enrol.init_hub(tmp_path / "hub", "localhost", 8102)
    assert (
        str(hub)
        in json.loads((hub / "local" / "resources.json").read_text())["snapshot_persistor"]["args"][
            "storage"
        ]["args"]["root_dir"]
    )
    request, public = enrol.request_site(tmp_path / "h1", "hospital-1", "localhost", 8102)
    assert b"PRIVATE KEY" not in request.read_bytes()
    assert enrol.read_request(request) == ("hospital-1", "site")
    for name, role in (("hospital-2", "site"), ("hospital-1", "researcher")):
        with pytest.raises(ValueError, match="asks for a certificate of 'hospital-1' as a site"):
            enrol.approve(tmp_path / "hub", request, name, role)
    signed = enrol.approve(tmp_path / "hub", request, "hospital-1", "site")
    rows = tmp_path / "rows.csv"
    rows.write_text("id,age,bmi\n1,50,22.5\n2,61,27.1\n")
    wrong = mark[:-2] + ("00" if mark[-2:] != "00" else "11")
    with pytest.raises(ValueError, match="package failed"):
        enrol.finish_site(tmp_path / "h1", "hospital-1", signed, wrong, rows, ["age", "bmi"])
    kit = enrol.finish_site(tmp_path / "h1", "hospital-1", signed, mark, rows, ["age", "bmi"])
    assert check_site(kit) == []
    node = Node.load(kit / "local" / "fedmixtures.toml")
    np.testing.assert_array_equal(node.support.rows, [[50, 22.5], [61, 27.1]])
    assert node.key.public == public
    assert node.config.limits.share_result is False
    assert node.config.state == tmp_path / "h1" / "state"
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == [EXECUTOR]
    # Whoever opens the kit again is told.
    resources["class_allow_list"].append("*")
    (kit / "local" / "resources.json").write_text(json.dumps(resources))
    assert check_site(kit) == ["class_allow_list is not our executor alone"]


def test_another_s_answer_gets_a_sentence(tmp_path, home):
    from fedmixtures.federation.nvflare import enrol

    request, _ = enrol.request_site(tmp_path / "h1", "hospital-1", "localhost", 8102)
    with pytest.raises(ValueError, match="is no answer of `federate approve`"):
        enrol.package(tmp_path / "h1", "hospital-1", request, "SHA256:00")
    enrol.init_hub(tmp_path / "hub", "localhost", 8102)
    signed = enrol.approve(tmp_path / "hub", request, "hospital-1", "site")
    with pytest.raises(ValueError, match="the hub's answer to 'hospital-1', not to 'hospital-2'"):
        enrol.package(tmp_path / "h2", "hospital-2", signed, "SHA256:00")
    with pytest.raises(ValueError, match="holds no request of 'hospital-1'"):
        enrol.package(tmp_path / "elsewhere", "hospital-1", signed, "SHA256:00")
    with pytest.raises(ValueError, match="could not be packed. Is --fingerprint"):
        enrol.package(tmp_path / "h1", "hospital-1", signed, "SHA256:00")


def test_a_pinned_key_is_never_replaced(tmp_path):
    path, first, second = tmp_path / "roster.toml", SiteKey.generate(), SiteKey.generate()
    assert pin(path, "hospital-2", first.public, "site") == fingerprint(first.public)
    pin(path, "hospital-2", first.public, "site")
    with pytest.raises(ValueError, match="another key"):
        pin(path, "hospital-2", second.public, "site")
    with pytest.raises(ValueError, match="another key or role"):
        pin(path, "hospital-2", first.identity, "researcher")
    assert Roster.load(path).sites == {"hospital-2": first.public}
