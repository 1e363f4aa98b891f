"""The figures of SPARK's paper, drawn by seaborn over the frames of a report.

A figure is a file with two functions: ``NAME_rows(results)`` tidies a report's frame
into the rows that are drawn (none: the report does not hold the figure), and
``draw_NAME(results, width=...)`` draws them. Intervals are those of the report: seaborn
estimates none. :mod:`spark_audit.report.figures.paper.drawing` lists the figures.
"""
