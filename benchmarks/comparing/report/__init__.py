"""Writes report.md: the measurements, their summary, and where RAGCache was not better.

`sections` puts it together. A section is a function from the record of a run to lines of Markdown; it
yields nothing if the run has nothing for it.
"""
