"""Identifiers that nobody planted, ranked among fresh strings of their kind."""

from spark_audit.audits.twins import rise as rise
