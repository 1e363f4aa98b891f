"""Phases: what a method does on a task, with its rows and its losses."""
