"""Make the answers of an engine without a model."""

from __future__ import annotations

import json

from ragcache_engine.chat.plain_template import TAG
from ragcache_engine.chat.schema_samples import make_sample
from ragcache_engine.chat.tools import CLOSE, OPEN
from ragcache_engine.errors import UnsupportedGuide
from ragcache_engine.guide import Guide, GuideKind

THINK_TAGS = ("<think>", "</think>")
"""What stands around the reasoning in a reply, as Qwen3 and DeepSeek R1 write it."""


def echo(prompt: str) -> str:
    """Return the default reply: "You asked: ", and the prompt's last line that is not empty or a tag."""
    said = (line.strip() for line in prompt.splitlines() if not TAG.fullmatch(line))
    lines = [line for line in said if line]
    return f"You asked: {lines[-1]}" if lines else "You asked nothing."


def keep_to_guide(reply: str, guide: Guide) -> str:
    """Return the reply if it keeps to the guide, else a text that does.

    For a guide to JSON, a reply that is JSON passes; this does not compare it with the schema. Of a call
    between its tags, what is between them passes, because a guided model writes none.
    Raises UnsupportedGuide if no such text can be made up.
    """
    match guide.kind:
        case GuideKind.JSON:
            text = reply
            if reply.strip().startswith(OPEN) and reply.strip().endswith(CLOSE):
                text = reply.strip().removeprefix(OPEN).removesuffix(CLOSE).strip()
            return text if _is_json(text) else json.dumps(make_sample(guide.schema))
        case GuideKind.CHOICE:
            return next((text for text in guide.form if text in reply), guide.form[0])
    raise UnsupportedGuide(
        f"the memory backend has no model that could keep to a {guide.kind.value}: use a guide of "
        f"kind json or choice, or backend='vllm'"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
