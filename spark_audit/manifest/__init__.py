"""The manifest: everything an audit needs besides the checkpoint, built once."""
