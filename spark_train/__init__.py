"""Training of what is audited: SPARK, its ablations, and what it is compared with.

``spark-train run --method spark`` in the order to read it: ``cli.py`` (flags),
``training_run.py`` (a run from data to its folder), ``methods/spark.py`` (two phases
per task), ``phases.py`` (learning with distilled replay, and privacy correction),
``loop.py`` (the steps of a phase), ``student.py`` (the model) and ``losses.py``.
"""
