"""Which objects a function uses, as far as Python tells."""

from functools import partial

from ragcache_integrations.acceleration import objects_used_by


class Part:
    def __init__(self, inner=None):
        self.inner = inner

    def work(self):
        return self.inner


IN_MODULE = Part()
NOT_USED = Part()


def used_by(function):
    return [each for each in objects_used_by(function) if isinstance(each, Part)]


def test_the_objects_of_its_closure():
    part = Part()
    assert used_by(lambda: part) == [part]


def test_the_globals_that_it_names_also_in_a_function_inside():
    def outer():
        return [IN_MODULE for _ in range(2)]

    assert used_by(outer) == [IN_MODULE]


def test_the_functions_of_its_closure_and_what_they_close_over():
    part = Part()

    def inner():
        return part

    assert used_by(lambda: inner()) == [part]


def test_the_object_it_is_bound_to_and_what_that_holds():
    part = Part(Part())
    assert used_by(part.work) == [part, part.inner]


def test_the_arguments_of_a_partial_and_its_default_values():
    first, second, third = Part(), Part(), Part()

    def function(_, __, part=third):
        return part

    assert set(used_by(partial(function, first, part=second))) == {first, second, third}


def test_functions_that_call_each_other_and_names_without_a_value_do_no_harm():
    def ping():
        return pong()

    def pong():
        return (ping(), late)

    assert used_by(ping) == []
    late = Part()
    assert used_by(ping) == [late]
