"""The only place that knows Redis, rq, OpenAI, Weaviate, an embedder's library or a benchmark's package."""
