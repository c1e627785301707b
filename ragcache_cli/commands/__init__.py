"""The commands of `ragcache`, one module each, with its arguments and the function that it calls.

Every module has

    SUMMARY, DESCRIPTION                one line for `ragcache --help`, and the head of its own help
    add_arguments(parser)               declare its arguments
    run(parsed, console) -> int         do it, and return the exit code

Importing a command is quick, because only `run` imports what the work needs. So `ragcache --help`
answers at once.
"""
