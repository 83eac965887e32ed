import pytest

from reproduction.config import NAMES, from_toml, load, to_toml
from reproduction.run import cells_of


@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_survives_a_round_trip(name):
    experiment = load(name)
    assert experiment.name == name
    assert from_toml(to_toml(experiment)) == experiment


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_names_its_cells_and_twenty_seeds(name):
    experiment = load(name)
    cells = cells_of(experiment)
    assert len(cells) > 0
    assert len(set(cells)) <= len(cells)
    assert experiment.n_seeds == (1 if name == "table1" else 20)


def test_unknown_and_missing_entries_are_named():
    text = to_toml(load("table2"))
    with pytest.raises(ValueError, match="'rounds'"):
        from_toml(text.replace("n_rounds =", "rounds ="))
    with pytest.raises(ValueError, match="incomplete.*title"):
        from_toml(text.replace("title =", "# title ="))


def test_an_unknown_name_suggests_a_known_one():
    with pytest.raises(ValueError, match="Did you mean 'table2'"):
        load("table_2")


def test_the_papers_settings_are_those_stated():
    table2, digits = load("table2"), load("fig-digits")
    assert {row.name: row.options["alpha"] for row in table2.rows if "alpha" in row.options} == {
        "gtv-eucl": 1.0,
        "gtv-kl": 0.1,
        "gtv-mmd": 1.0,
    }
    assert (table2.n_rounds, table2.gtv.learning_rate, table2.gtv.n_local_steps) == (40, 0.02, 5)
    assert (digits.n_rounds, digits.gtv.learning_rate) == (25, 0.01)
    assert (table2.start.n_init, table2.start.reg_covar) == (2, 1e-3)
    for row in load("table3").rows:
        if row.method.startswith("gtv"):
            assert row.tune == {"alpha": [0.1, 1.0, 10.0, 100.0]}  # chosen, never written down
