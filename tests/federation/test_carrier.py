"""The third recipe of extension, run: a carrier of one's own, by pigeons with a box each."""

from collections import deque

from federated import SITES, Sites, a_job, site_rows
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.rounds import SiteRounds, common_round, hello
from helpers import assert_close, lines_of_code


class Pigeons:
    """Parcels fly one by one; whoever has something to say lets them go."""

    def __init__(self, nodes, signed):
        to = {name: lambda frame, node=node: ask(node, frame) for name, node in nodes.items()}
        self.sites = {name: SiteRounds(to[name], signed.job, name, nodes) for name in nodes}
        self.first = common_round({name: to[name](hello(signed)) for name in nodes})
        self.loft = {name: deque() for name in nodes}

    def fly(self, parcels):
        for parcel in parcels:
            self.loft[parcel.destination].append(parcel)

    def run(self):
        for site in self.sites.values():
            self.fly(site.begin(self.first))
        while not all(site.is_over for site in self.sites.values()):
            came, self.loft = self.loft, {name: deque() for name in self.loft}
            for name, site in self.sites.items():
                self.fly(site.step(came[name]))


def test_a_carrier_of_ones_own_ends_where_ours_does(tmp_path):
    job, found = a_job(n_rounds=3), []
    for folder in ("ours", "pigeons"):
        sites = Sites(tmp_path / folder, site_rows())
        if folder == "ours":
            sites.run(job)
        else:
            Pigeons(sites.nodes, sites.signed(job)).run()
        found.append(sites.results(job))
    for name in SITES:
        assert_close(found[1][name], found[0][name], 1e-12)
    assert lines_of_code(Pigeons) <= 16  # what CONTRIBUTING.md says
