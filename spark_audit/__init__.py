"""SPARK Audit: what a language-model checkpoint gives away of its training data.

docs/tutorial.md goes from rows of text to a report. Names are resolved when they are
used: importing this imports neither torch nor pandas.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
