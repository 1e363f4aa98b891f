"""Statistics of the audits: pure numpy and SciPy, no model, no file.

``sa.stats.NAME`` reaches what ``__init__.pyi`` lists: estimates and intervals, tests,
matching, the memory contrast, power, ROC, canaries and bounds of epsilon. Each of them
is imported at its first use. Import everything else from its own file.

Examples
--------
>>> low, high = sa.stats.clopper_pearson(0, 10)
>>> low, round(high, 3)
(0.0, 0.308)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
