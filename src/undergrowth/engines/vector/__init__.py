"""Many clients at once as one batched computation."""
