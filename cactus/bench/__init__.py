"""The benchmark: methods against each other, and against other libraries, on the same pair in the same process.

Results come from traces (`cactus.metrics`); nothing here computes an acceptance or a speedup of its own.
"""
