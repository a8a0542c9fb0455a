"""Actor processes: their code, start, supervision and end. Nothing here imports torch."""
