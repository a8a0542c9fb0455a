"""Actor processes: what runs in them, how they are started, watched and ended. Nothing here imports torch."""
