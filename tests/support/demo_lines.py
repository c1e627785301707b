"""Tells the demo's own lines from those of its dependencies, which must print nothing."""

from __future__ import annotations

import re

SIDES = "stock vLLM|RAGCache, exact|RAGCache, any position"
ROUNDS = "new questions|questions of an earlier run, kept on disk|the same again"
TIMES = r"( +\d+\.\d\d){3}"
SHARES = r" +[\d,]+( +\d+%){3}"

OURS = (
    r"",
    r"✓ .+",
    r"Other programs t(ake|ook) .+",
    r"  [\d,]+ of [\d,]+ tokens computed, .+",
    r"Each question with its \d+ nearest passages\. .+",
    # a question, and what each side answered
    r"\d+/\d+ .+",
    rf"  ({SIDES}) +\d+\.\d\d s  .*",
    r" {35}\[\d+ of \d+ tokens reused\]",
    r" {35}\[\S+ \d+/\d+ .+\]",
    # the table
    r" *Seconds from the question to the first token, and prompt tokens reused",
    r" +(TTFT s +){3}prompt( +reused){3}( +equal){2}",
    r" *#  question +stock +exact +any +tokens +stock +exact +any +exact +any",
    r"─+",
    rf" *\d+  .+{TIMES}{SHARES}( +(yes|no)){{2}}",
    rf" +mean, ({ROUNDS}){TIMES}{SHARES}( +\d+/\d+){{2}}",
    rf" +median{TIMES}",
    r"reused: not computed, from device, host or disk; .+",
    r"equal: the answer is stock vLLM's, to the character",
    # the end
    r"(Sooner|Equal|The trade|Written): .+",
    r"With your own files:",
    r"  \S*(ragcache|python -m ragcache_cli) (ask|calibrate|warm|demo) .+   # .+",
    r"All in all \d+ s\.",
)
"""All kinds of lines that the demo prints where its output is no terminal and lines do not wrap."""

_ANY_OF_OURS = re.compile("|".join(f"(?:{kind})" for kind in OURS))


def foreign_lines(text: str) -> list[str]:
    """Return the lines that the demo has not printed itself."""
    return [line for line in text.splitlines() if not _ANY_OF_OURS.fullmatch(line.rstrip())]
