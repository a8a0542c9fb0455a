"""A trained policy by itself: its file, loading, ONNX, playing and filming episodes."""
