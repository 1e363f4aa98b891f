"""SPARK Audit: measure what a language model reveals of its training data.

docs/tutorial.md shows the way from rows of text to a report. Names are resolved at
first use, so an import of this package imports neither torch nor pandas.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
