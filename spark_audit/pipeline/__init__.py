"""From checkpoints and a manifest to a report folder."""
