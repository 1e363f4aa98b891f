"""Entry points for other programs; each file is imported only by its user."""
