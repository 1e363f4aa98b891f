"""The manifest: all inputs of an audit except the checkpoint, built once."""
