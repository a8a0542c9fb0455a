"""asyncrl beside other libraries, and the programs that run those."""
