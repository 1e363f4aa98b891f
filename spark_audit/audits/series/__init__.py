"""Series: membership inference that reads all stages of a series."""
