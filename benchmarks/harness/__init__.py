"""What the scripts share: result files, runs to a target, load conditions, slowed environments and learners."""
