"""Scoring: items through a model once, into token tables that resume."""
