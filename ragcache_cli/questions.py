"""The demo's questions about Python: few topics, in different words, as many people would ask them.

Two questions in a row never share a topic, and most topics come back later. The demo's corpus has the
answers.
"""

from __future__ import annotations

QUESTIONS: tuple[str, ...] = (
    "What does the with statement do with a context manager's __enter__ and __exit__ methods?",
    "What happens when a finally clause executes a return or break statement?",
    "What does a decorator do to a function definition?",
    "When are default parameter values of a function evaluated?",
    "What happens if no except clause of a try statement matches the exception?",
    "In which order are several decorators applied to one function definition?",
    "What does the global statement do?",
    "What is the difference between async for and for?",
    "What happens if a finally clause contains a return statement?",
    "Are default values of parameters evaluated each time the function is called?",
    "How does the import statement find a module that was not imported before?",
    "When does the with statement call the __exit__ method of a context manager?",
    "What is a function definition's decorator expression, and when is it evaluated?",
    "Can I assign to a global variable inside a function without declaring it global?",
    "Why does a mutable default argument keep its value between calls of a function?",
    "Where can async with be used?",
    "When is an except clause chosen for an exception?",
    "How do I format a number with a comma as thousands separator?",
    "What happens when a from import statement names an attribute that the module lacks?",
    "Which presentation types are there for floating point numbers in format strings?",
)

_ABOUT_FORMATS = (17, 19)

STATEMENT_QUESTIONS = tuple(
    question for at, question in enumerate(QUESTIONS) if at not in _ABOUT_FORMATS
)
"""Those that the chapters on statements answer."""
