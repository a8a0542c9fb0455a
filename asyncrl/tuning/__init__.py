"""Search of an algorithm's options over runs: space, study, trials, finalists, and seeds that chose nothing."""
