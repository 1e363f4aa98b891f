"""Likelihood of identifiers against controls that were equally hard before training."""

from spark_audit.audits.matched import selectivity as selectivity
