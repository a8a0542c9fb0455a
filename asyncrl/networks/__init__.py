"""The engine: networks on flat parameter vectors, their passes, distributions and Adam, in torch."""
