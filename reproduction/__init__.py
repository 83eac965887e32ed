"""The paper's experiments, each by name, with our numbers beside the published ones."""
