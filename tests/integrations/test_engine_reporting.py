from ragcache_engine import Document, EngineConfig, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.engine_reporting import stage_listener, stream_and_tell_engine


def test_what_cannot_be_told_the_engine_is_left_out():
    with RAGCacheEngine(
        EngineConfig(model="any", backend="memory"), backend=MemoryBackend()
    ) as engine:

        def fails(item):
            raise ValueError(item)

        with engine.retrieval("Why?") as retrieval:
            stage_listener(retrieval, fails)(["a"], 0.5)
            retrieval.found([])


def test_the_engine_knows_the_answer_even_if_its_reader_stops_there():
    documents = [Document("d1", "One tells of the first thing there is to tell.")]
    with RAGCacheEngine(
        EngineConfig(model="any", backend="memory"), backend=MemoryBackend()
    ) as engine:
        stages = stream_and_tell_engine(
            engine.retrieval("Why?"), lambda item: item, lambda put: documents
        )
        assert next(stages) == (documents, 1.0, True)
        stages.close()
        assert engine.generate(f"{documents[0].text} Why?").usage.document_ids == ("d1",)
