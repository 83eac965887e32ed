"""How rounds are run: who carries the messages, what is recorded, where to go on."""
