"""Triton kernels. Importing a module of this package imports triton: engines do so when they first run, never before.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D and E widths of queries
and values, n distances. Inside a kernel a tile has M queries and N keys, the first pair of it `apart` tokens apart.
"""
