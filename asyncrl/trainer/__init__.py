"""The object that people hold: a run in a thread of its own, or in several processes, and the result it leaves."""
