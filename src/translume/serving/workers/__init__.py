"""Models in worker processes: loading, scheduling, batching, reloading."""
