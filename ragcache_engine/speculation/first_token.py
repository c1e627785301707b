"""Rules for guessing the first token of an answer whose length and stop strings are not known yet.

A chain may ask for another `max_tokens` or `stop` in every prompt. Neither changes which token comes
next, only where the answer ends. So such a chain gets guesses of one token: its prompt adopts that token,
and the rest is generated from there with the prompt's own options (`going_on`).
"""

from __future__ import annotations

from dataclasses import replace

from ragcache_engine.values import SamplingOptions


def keep_first_token(options: SamplingOptions) -> SamplingOptions:
    """Return the options of a guess of the first token, whatever will end the answer."""
    return replace(options, max_tokens=1, stop=())


def are_alike(one: SamplingOptions, other: SamplingOptions) -> bool:
    """Return whether answers with these options have the same tokens, up to where one of them ends.

    Not with a guide or penalties, which would apply anew to the rest, nor with a seed, which draws other
    tokens for the rest than for the whole.
    """
    is_repeatable_draw = one.temperature > 0 and one.seed is not None
    if one.depend_on_start or is_repeatable_draw:
        return False
    return keep_first_token(one) == keep_first_token(other)


def is_first_token_of(guess: SamplingOptions, wanted: SamplingOptions) -> bool:
    """Return whether a guess with these options generates the first token of the wanted answer."""
    return guess.max_tokens == 1 and not guess.stop and are_alike(guess, wanted)
