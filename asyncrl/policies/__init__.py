"""Trained policies: file format, loading, ONNX export, playing and filming episodes."""
