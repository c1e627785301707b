"""Says what helps if a structured answer ended before its form was complete."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RUNAWAY = 8
"""So much white space in a row between two parts of JSON is no layout."""

_WHITE_SPACE = (
    "the answer ended in white space, of which guided JSON may have as much as it likes between its "
    "parts: more tokens do not help. Forbid it where vLLM is started, with structured_outputs_config="
    "{'backend': 'xgrammar', 'disable_any_whitespace': True} in vllm_args, or with a server's flag "
    '--structured-outputs-config \'{"backend": "xgrammar", "disable_any_whitespace": true}\''
)


def describe_cut_answer(text: str, advice: str) -> str:
    """Return the message of an AnswerCutShort.

    text: the JSON as far as it goes. advice: what helps if there were too few tokens for it.
    """
    outside = _STRING.sub("", text)
    is_runaway = len(text) - len(text.rstrip()) >= _RUNAWAY and '"' not in outside
    return _WHITE_SPACE if is_runaway else advice
