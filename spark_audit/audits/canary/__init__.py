"""Planted canaries ranked among strings that they could as well have been."""
