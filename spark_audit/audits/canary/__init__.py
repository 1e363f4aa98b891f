"""Planted canaries ranked among strings that they could as well have been."""

from spark_audit.audits.canary import exposure as exposure
