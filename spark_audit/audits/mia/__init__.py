"""Membership inference: whether scores separate trained rows from held-out rows."""
