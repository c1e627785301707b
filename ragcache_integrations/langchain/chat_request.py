"""One call of the chat model, from the engine's prompt to the parts of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_engine import (
    Answer,
    ChatPrompt,
    Piece,
    SamplingOptions,
    ToolAnswer,
    ToolAnswerPart,
    ToolReader,
)


@dataclass(slots=True)
class ChatRequest:
    """One call: what the engine is asked, and what reads tool calls out of its answer."""

    prompt: ChatPrompt
    options: SamplingOptions
    reader: ToolReader | None

    def read_answer(self, answer: Answer) -> ToolAnswer:
        return self.reader.whole(answer.text) if self.reader else ToolAnswer(answer.text)

    def read_piece(self, piece: Piece) -> ToolAnswerPart | None:
        """What the piece turned out to be; None if that is not known yet."""
        if self.reader is None:
            return ToolAnswerPart(piece.text) if piece.text else None
        part = self.reader.read(piece.text, piece.token_ids)
        if piece.finish_reason:
            end = self.reader.end()
            part = ToolAnswerPart(part.text + end.text, (*part.calls, *end.calls))
        return part if part.text or part.calls else None
