"""Chooses the model that a command loads, and the form of its prompts."""

from __future__ import annotations

from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME, demo_model
from ragcache_cli.prompts import CHATML, INSTRUCTION, PromptForm, form_of_model, plain_form
from ragcache_cli.terminal import Phases

ASK_INSTRUCTION = INSTRUCTION.format(about="").replace("  ", " ")


def prepare_model(model: str, backend: str, notes: Phases) -> tuple[str, PromptForm]:
    """Return the model to load and the form of its prompts. Converts the demo's model if need be.

    model: as given on the command line. Raises MissingExtra, ModelNotFound, DemoModelUnavailable.
    """
    if backend == "memory":
        return model, plain_form(ASK_INSTRUCTION)
    if model != DEMO_MODEL:
        return model, form_of_model(model, ASK_INSTRUCTION)
    with notes.waiting(f"Preparing the model {DEMO_MODEL_NAME}"):
        return str(demo_model()), _about_anything(CHATML)


def _about_anything(form: PromptForm) -> PromptForm:
    python = INSTRUCTION.format(about="about Python")
    return PromptForm(form.before.replace(python, ASK_INSTRUCTION), form.between, form.after)
