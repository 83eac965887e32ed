"""A site: `node.Node.handle(frame) -> frame` owns rows, model, release, checks and checkpoints."""
