"""What the adapters of all engines share: digests of a model's files, and saving behind the engine.

Nothing here imports an engine."""
