"""The audit of erasure: whether what should be forgotten was forgotten."""
