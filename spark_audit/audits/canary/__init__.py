"""Canaries: their ranks among candidates, and bounds of epsilon."""
