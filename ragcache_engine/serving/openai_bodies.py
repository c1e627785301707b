"""Rewrites the bodies of OpenAI's own requests, and of Anthropic's messages, on their way in.

A client may name the documents of a completion by characters; the server knows the tokens. A client with
a tenant's key shares tensors within this tenant only, whatever it writes into its body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from ragcache_engine.chat import check_template_args
from ragcache_engine.checks import (
    CHARACTERS_PER_TOKEN,
    require_salt,
    require_short_prompt,
    shown,
)
from ragcache_engine.errors import InvalidArgument
from ragcache_engine.prompt import token_segments
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving.keys import Caller
from ragcache_engine.serving.messages import LONGEST_GUIDE
from ragcache_engine.serving.recognising import recognise
from ragcache_engine.serving.room import Place
from ragcache_engine.serving.routes import (
    Served,
    read_spans,
    require_countable,
    require_few_documents,
)
from ragcache_engine.tiers.wire import FIELD, MalformedRequest, RequestMessage
from ragcache_engine.values import TokenSegment

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
SALTED = {COMPLETIONS, CHAT, RESPONSES, MESSAGES}
"""The paths that take a `cache_salt`, which keeps tenants apart."""

TRANSFER, DOCUMENTS, SEGMENTS, EXACT = "kv_transfer_params", "documents", "segments", "exact"
STARTS = "starts"
TEMPLATE_ARGS = "chat_template_kwargs"
LARGE_BODY_BYTES = 64 << 10
"""A larger body is checked in a thread: other requests need the event loop."""

_WHOLE_NUMBER = TypeAdapter(int)
GUIDES = ("structured_outputs", "response_format")

_REQUEST_NAME = re.compile(r"[!-~]{1,200}")

_SAMPLING = frozenset(
    {
        "model", "user", "stream", "stream_options", "stream_interval", "n", "seed", "stop",
        "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "max_tokens", "min_tokens",
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "logprobs", "prompt_logprobs", "logprob_token_ids",
        "allowed_token_ids", "bad_words", "thinking_token_budget", "echo", "add_special_tokens",
        "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens",
        "truncation_side", "return_token_ids", "return_tokens_as_token_ids", "return_token_offsets",
        "cache_salt", TRANSFER, *GUIDES,
    }
)  # fmt: skip
_CONVERSATION = frozenset(
    {
        "model", "messages", "tools", "add_generation_prompt", "continue_final_message",
        "add_special_tokens", TEMPLATE_ARGS,
    }
)  # fmt: skip
TENANTS_FIELDS = {
    COMPLETIONS: _SAMPLING | {"prompt", "suffix"},
    CHAT: _SAMPLING
    | _CONVERSATION
    | {
        "documents", "include_reasoning", "max_completion_tokens", "parallel_tool_calls",
        "reasoning_effort", "return_prompt_text", "tool_choice", "top_logprobs",
    },
    RESPONSES: frozenset(
        {
            "model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "top_k",
            "min_p", "top_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty",
            "seed", "stop", "stream", "text", "reasoning", "include_reasoning", "tools", "tool_choice",
            "parallel_tool_calls", "truncation", "metadata", "user", "include", "structured_outputs",
            "cache_salt", TEMPLATE_ARGS, TRANSFER,
        }
    ),
    MESSAGES: frozenset(
        {
            "model", "messages", "system", "max_tokens", "metadata", "stop_sequences", "stream",
            "temperature", "top_k", "top_p", "tools", "tool_choice", "thinking", "output_config",
            "cache_salt", TEMPLATE_ARGS, TRANSFER,
        }
    ),
    TOKENIZE: _CONVERSATION | {"prompt", "return_token_strs"},
    DETOKENIZE: frozenset({"model", "tokens"}),
}  # fmt: skip
"""The paths whose bodies are rewritten, and what a tenant may say there. vLLM takes more, with which one
tenant could get ahead of the others, reach their tensors, or bring programs."""

TENANTS_HEADERS = frozenset(
    {
        b"accept", b"accept-encoding", b"authorization", b"content-length", b"content-type", b"host",
        b"origin", b"traceparent", b"tracestate", b"user-agent",
    }
)  # fmt: skip
"""The headers of a tenant that vLLM sees. Of the others, some say what a body may not."""


class Rewritten(NamedTuple):
    """A body as the server is to read it.

    may_borrow: whether the server may borrow for its answer. recognised: its prompt, if registered
      documents stand in it that it does not name itself.
    """

    body: bytes
    may_borrow: bool
    recognised: BackendRequest | None = None


async def rewrite_body(
    path: str,
    body: bytes,
    caller: Caller,
    place: Place,
    served: Served,
    held: ExitStack,
    *,
    is_exact: bool = False,
) -> Rewritten:
    """Rewrite the body of a request.

    place: it is widened to all answers of the request. held: until it is closed, registered documents of
      the prompt count as in use. is_exact: whether a header asked for an answer that borrows nothing; the
      body may ask for it too.
    Raises InvalidArgument for a body that is no JSON object or that the server could not read, for
    documents that do not lie in the prompt, and for more of something than a server takes;
    PromptTooLong; and as `Place.widen` does.
    """
    said = _read_object(body)
    is_exact |= _asks_for_exact(said)
    place.widen(count_answers(said))
    ours = _read_ours(said)
    _require_bounded(said, ours)
    if (characters := _count_characters(said)) > CHARACTERS_PER_TOKEN:
        if path == TOKENIZE:
            require_countable(characters, served)
        else:
            require_short_prompt(characters, served.limits.context_tokens)
    is_changed = said.pop(FIELD, None) is not None
    named: Mapping[str, Any] = {}
    if DOCUMENTS in ours:
        map_to_tokens = partial(_map_to_tokens, said, ours[DOCUMENTS], served)
        named = _name(await served.tokenizers.run(map_to_tokens))
    if caller.tenant is not None:
        said, is_changed = _confine(path, said, ours, caller), True
    require_salt(said.get("cache_salt"))
    written = json.dumps(said).encode() if is_changed else body
    await _require_readable(path, written, served)
    found, readable = None, said
    if path in SALTED and not {DOCUMENTS, SEGMENTS} & ours.keys():
        found = await _recognise(path, said, body, caller, served, held)
        named = _name(found.segments) if found else {}
    if named:
        said = _with_ours(said, named)
    ours = _read_ours(said)
    if SEGMENTS in ours and (is_exact or served.is_switched_off()):
        said = _with_ours(said, {EXACT: True})
    may_borrow = SEGMENTS in ours and _read_ours(said).get(EXACT) is not True
    if said is not readable:
        written = json.dumps(said).encode()
    return Rewritten(written, bool(served.reuse) and may_borrow, found)


async def _require_readable(path: str, body: bytes, served: Served) -> None:
    """Raise InvalidArgument for a body that the server would fail at."""
    if len(body) < LARGE_BODY_BYTES:
        served.require_readable(path, body)
    else:
        await served.tokenizers.run(partial(served.require_readable, path, body))


async def _recognise(
    path: str,
    said: Mapping[str, Any],
    body: bytes,
    caller: Caller,
    served: Served,
    held: ExitStack,
) -> BackendRequest | None:
    """Return the prompt with the registered documents in it; None without any, or where they change."""
    if len(body) > LARGE_BODY_BYTES + 2 * CHARACTERS_PER_TOKEN * served.limits.context_tokens:
        return None  # most of it is no prompt
    moment = served.corpora.moment()
    # Of a tenant, the salt is what names it to vLLM by now.
    found = await recognise(path, said, caller.tenant, _read_salt(said), served)
    if found is None or not held.enter_context(served.corpora.using(found.named_documents, moment)):
        return None
    return found


def _name(segments: Sequence[TokenSegment]) -> Mapping[str, Any]:
    """Return what says where documents stand in a prompt; nothing without segments."""
    if not segments:
        return {}
    return {
        SEGMENTS: [(one.end, one.document_id) for one in segments],
        STARTS: [one.text_start for one in segments if one.document_id is not None],
    }


def _with_ours(said: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with more in our part of it."""
    transfer, ours = said.get(TRANSFER), _read_ours(said)
    kept = {name: value for name, value in ours.items() if name != DOCUMENTS}
    return {
        **said,
        TRANSFER: {**(transfer if isinstance(transfer, dict) else {}), FIELD: {**kept, **more}},
    }


def _read_salt(said: Mapping[str, Any]) -> str | None:
    salt = said.get("cache_salt")
    return salt if isinstance(salt, str) and salt else None


def count_answers(said: Mapping[str, Any]) -> int:
    """Return how many answers a body asks for: each of its prompts n times."""
    prompt, prompts = said.get("prompt"), 1
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompts = len(prompt)
    try:
        n = _WHOLE_NUMBER.validate_python(said.get("n"))  # "3" and 3.0 count, as in vLLM
    except ValidationError:
        n = 1
    return prompts * max(1, n)


def _count_characters(said: Mapping[str, Any]) -> int:
    """Return how many characters a body's longest prompt has, or all of its conversation and tools."""
    prompt = said.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    longest = max((len(one) for one in prompts if isinstance(one, str)), default=0)
    conversation = (said.get(name) for name in ("messages", "input", "instructions", "system"))
    beside = (said.get(name) for name in ("tools", "documents", TEMPLATE_ARGS))
    return max(
        longest + _count_strings(said.get("suffix")),
        sum(map(_count_text, conversation)) + sum(map(_count_strings, beside)),
    )


WRITTEN = (
    *("text", "content", "output", "tool_calls", "function", "arguments"),
    *("thinking", "reasoning", "reasoning_content", "summary"),
)
"""What of a message, and of its parts, a prompt has. Not pictures, whose bytes are no characters."""


def _count_text(content: object) -> int:
    """Return how many characters the texts have of a message's content, of messages, or of a text.

    A body that was read goes no deeper than 200 levels.
    """
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(map(_count_text, content))
    if isinstance(content, dict):
        written = sum(_count_text(content.get(name)) for name in WRITTEN)
        return written + _count_strings(content.get("input"))  # of Anthropic's calls of tools
    return 0


def _count_strings(value: object) -> int:
    """Return how many characters all strings of a JSON value have."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_count_strings, value))
    if isinstance(value, dict):
        return sum(len(name) + _count_strings(one) for name, one in value.items())
    return 0


def require_request_name(name: str, where: str) -> None:
    """Raise InvalidArgument for a request's name that has no place in vLLM's log. where: who said it."""
    if not _REQUEST_NAME.fullmatch(name):
        raise InvalidArgument(f"{where} has 1 to 200 visible ASCII characters, not {shown(name)}")


def _require_bounded(said: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise InvalidArgument for what would cost the server more than it brings the client."""
    if isinstance(name := said.get("request_id"), str):
        require_request_name(name, "request_id")
    try:
        segments = RequestMessage.from_dict({FIELD: ours}).segments
    except MalformedRequest as error:
        raise InvalidArgument(f"{TRANSFER}.{FIELD}.{SEGMENTS}: {error}") from error
    require_few_documents(sum(document is not None for _, document in segments))
    for name in GUIDES:
        if (size := len(json.dumps(said.get(name)))) > LONGEST_GUIDE:
            raise InvalidArgument(
                f"{name} has {size:,} characters, and a server takes {LONGEST_GUIDE:,}: shorten it"
            )
    if isinstance(arguments := said.get(TEMPLATE_ARGS), dict):
        check_template_args(arguments)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        said = from_json(body)  # it goes no deeper than 200 levels
    except ValueError as error:
        raise InvalidArgument(f"the body is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise InvalidArgument("the body is no JSON object")
    return said


def _read_ours(said: dict[str, Any]) -> dict[str, Any]:
    """Return our part of a body; empty if there is none."""
    transfer = said.get(TRANSFER)
    ours = transfer.get(FIELD) if isinstance(transfer, dict) else None
    return ours if isinstance(ours, dict) else {}


def _asks_for_exact(said: Mapping[str, Any]) -> bool:
    """Return whether a body asks for an answer that borrows nothing: {"ragcache": {"exact": true}}.

    Raises InvalidArgument for anything else under that name.
    """
    asked = said.get(FIELD, {})
    is_understood = isinstance(asked, dict) and asked.keys() <= {EXACT}
    if not is_understood or not isinstance(asked.get(EXACT, False), bool):
        raise InvalidArgument(
            f'"{FIELD}" in a body is {{"{EXACT}": true}}, for an answer that borrows nothing, not '
            f"{shown(asked)}"
        )
    return asked.get(EXACT) is True


def _confine(
    path: str, said: dict[str, Any], ours: dict[str, Any], caller: Caller
) -> dict[str, Any]:
    """Return the body with the caller's tenant in it, and without what only operators may say."""
    known = TENANTS_FIELDS[path]
    confined = {name: value for name, value in said.items() if name in known and name != TRANSFER}
    if path == RESPONSES:
        confined["store"] = False  # whoever guesses its id could read it
        tools = confined.get("tools")
        if isinstance(tools, list):  # others are the server's own programs
            confined["tools"] = [one for one in tools if _is_function(one)]
    if path in SALTED:
        confined["cache_salt"] = caller.tenant_for(_read_salt(said))
        if SEGMENTS in ours:
            confined[TRANSFER] = {FIELD: {SEGMENTS: ours[SEGMENTS]}}
    return confined


def _is_function(tool: object) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "function"


def _map_to_tokens(said: dict[str, Any], documents: Any, served: Served) -> Sequence[TokenSegment]:
    """Return the segments of a completion's prompt whose documents are named by characters."""
    prompt = said.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidArgument(
            f"{TRANSFER}.{FIELD}.{DOCUMENTS} are characters of a prompt that is one text; for a prompt "
            f"of tokens, send {SEGMENTS}"
        )
    spans = read_spans(documents, prompt)
    tokens = served.backend.tokenize(prompt, said.get("add_special_tokens", True) is not False)
    return token_segments(tokens, spans)
