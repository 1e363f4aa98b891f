"""Sensitivity scores of training rows."""
