"""The learner: update loops, balance, staleness and publication of weights."""
