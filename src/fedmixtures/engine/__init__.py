"""Who carries the messages: blocks of nodes, rounds, checkpoints."""
