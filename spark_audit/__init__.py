"""SPARK Audit: what a language-model checkpoint gives away of its training data."""
