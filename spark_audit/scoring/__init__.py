"""Scoring: read items with a model once, into token tables that can resume."""
