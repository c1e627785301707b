"""Writes a conversation as a prompt with the chat template, as vLLM's own chat endpoint does."""

from __future__ import annotations

from typing import Any, cast

from vllm.exceptions import VLLMError
from vllm.renderers import BaseRenderer, ChatParams

from ragcache_engine.backends.vllm.differences import ChatTemplateResolutionError
from ragcache_engine.errors import NoChatTemplate, RefusedMessages
from ragcache_engine.protocols import Conversation


def render_conversation(conversation: Conversation, renderer: BaseRenderer[Any]) -> str:
    """Write a conversation as a prompt. Raises NoChatTemplate or RefusedMessages."""
    params = ChatParams(
        chat_template=conversation.template,
        chat_template_kwargs={
            **conversation.template_args,
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "add_generation_prompt": conversation.add_generation_prompt,
            "continue_final_message": conversation.continue_final_message,
            "tokenize": False,
        },
    )
    try:
        _, prompt = renderer.render_messages(cast("Any", list(conversation.messages)), params)
    except ChatTemplateResolutionError as error:
        raise NoChatTemplate(
            "this model came without a chat template: give EngineConfig(chat_template=...) the one "
            "it was trained with, use an instruction-tuned model, or write the prompt yourself and "
            "ask an LLM class instead of a chat model"
        ) from error
    except (VLLMError, ValueError, TypeError, KeyError) as error:
        raise RefusedMessages(
            f"the model's chat template does not take this conversation: {error}; many want one "
            f"system message at most, first, and then user and assistant in turn"
        ) from error
    text = prompt.get("prompt")
    if not isinstance(text, str):
        raise RefusedMessages(
            "this model's conversations are made of tokens that no text stands for; write the "
            "prompt yourself and ask an LLM class instead of a chat model"
        )
    return text
