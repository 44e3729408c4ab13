"""The runtime under both workers: models, paged KV, ragged passes and the engine thread."""
