"""What is learned: presets, disciplines, staleness, memory."""
