"""SPARK Audit: measure what a language model reveals of its training data.

docs/tutorial.md shows the way from rows of text to a report. Names are resolved at
first use, so an import of this package imports neither torch nor pandas.
"""

from importlib.metadata import PackageNotFoundError, version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    __version__ = version("spark-audit")
except PackageNotFoundError:
    # The code runs from a folder that was not installed.
    __version__ = "not installed"
