"""How annotations are checked while tests run: a whole number is a float, as Python has it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
