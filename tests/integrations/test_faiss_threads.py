from concurrent.futures import ThreadPoolExecutor

import pytest

faiss = pytest.importorskip("faiss")

from ragcache_integrations.faiss_threads import with_faiss_threads_of_caller  # noqa: E402


@pytest.fixture
def three_threads():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    yield
    faiss.omp_set_num_threads(before)


def test_a_call_in_another_thread_has_the_callers_number_and_leaves_that_threads_own(three_threads):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(faiss.omp_set_num_threads, 5).result()
        call = with_faiss_threads_of_caller(faiss.omp_get_max_threads)
        assert pool.submit(call).result() == 3
        assert pool.submit(faiss.omp_get_max_threads).result() == 5
