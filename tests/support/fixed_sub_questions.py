"""Sub-questions that are always the same, because a model as small as the tests' invents none."""

from __future__ import annotations

from typing import Any

from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion

QUESTION = "Why does the sky look blue and not violet?"
OTHER = "What makes bread rise?"


class FixedSubQuestions(BaseQuestionGenerator):
    def generate(self, tools: Any, query: Any) -> list[SubQuestion]:
        return [
            SubQuestion(sub_question=question, tool_name=tools[0].name)
            for question in (QUESTION, OTHER)
        ]

    async def agenerate(self, tools: Any, query: Any) -> list[SubQuestion]:
        return self.generate(tools, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass
