"""Engines: what runs the passes of a call, and where, one file each."""
