"""Several groups of actors and a learner: cost, gain, correctness and faults of their fusions."""
