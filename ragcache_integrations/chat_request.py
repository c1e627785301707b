"""One call of the chat model: the request to the engine, and the reader of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ragcache_engine import (
    Answer,
    ChatPrompt,
    Piece,
    RAGCacheEngine,
    SamplingOptions,
    ToolAnswer,
    ToolAnswerPart,
    ToolReader,
)


@dataclass(slots=True)
class ChatRequest:
    """The prompt and options of one call, and the reader that finds tool calls in the answer.

    reader: None if the call has no tools. engine: the one that is asked.
    has_begun: whether the answer itself has begun, behind what the model thinks. The ids of the mark
      between the two are no business of the reader's, which never sees its text.
    """

    prompt: str | ChatPrompt
    options: SamplingOptions
    reader: ToolReader | None
    engine: RAGCacheEngine
    has_begun: bool = False

    def read_answer(self, answer: Answer) -> ToolAnswer:
        """Split a whole answer into its text and its tool calls."""
        return self.reader.whole(answer.text) if self.reader else ToolAnswer(answer.text)

    def read_piece(self, piece: Piece) -> ToolAnswerPart | None:
        """Return what a piece of the answer adds; None if that is not known yet.

        A piece may be the beginning of a tool call, which the next pieces decide.
        """
        if self.reader is None:
            return ToolAnswerPart(piece.text) if piece.text else None
        is_only_text = bool(piece.text) and not piece.reasoning
        self.has_begun |= is_only_text or not self.engine.config.tells_reasoning
        part = self.reader.read(piece.text, piece.token_ids if self.has_begun else ())
        if piece.finish_reason:
            end = self.reader.end()
            part = ToolAnswerPart(part.text + end.text, (*part.calls, *end.calls))
        return part if part.text or part.calls else None

    # A server may have to read the calls, so the event loop must not wait for it.

    async def aread_answer(self, answer: Answer) -> ToolAnswer:
        """Split a whole answer as `read_answer` does."""
        if self.reader is None:
            return self.read_answer(answer)
        return await self.engine.threads.render(partial(self.read_answer, answer))

    async def aread_piece(self, piece: Piece) -> ToolAnswerPart | None:
        """Return what a piece adds, as `read_piece` does."""
        if self.reader is None or not piece.finish_reason:
            return self.read_piece(piece)
        return await self.engine.threads.render(partial(self.read_piece, piece))
