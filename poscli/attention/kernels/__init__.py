"""Triton kernels. Importing a module of this package imports triton, so engines import them only when they first run.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D and E widths of queries
and values, n distances. Inside a kernel a tile has M queries and N keys; its first query and its first key
are `apart` tokens apart. x, y, z and g are rows of q, k, v and do (the gradient of the output); `text` is an index into
the batch, and `at` one into batch and heads together. Files: flash.py, decode.py and rotary.py are the entry points;
forward.py, backward.py and distances.py hold the kernels of flash.py, pairs.py the scores of a tile, tile_shapes.py the
tile shapes.
"""
