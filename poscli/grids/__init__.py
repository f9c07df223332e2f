"""Tokens that are cells of images, at rows and columns.

This folder is a satellite: nothing of the core imports it, and poscli works without it. Read in this order: images.py
(from pixels to a corpus of cells), corpora.py (`--corpus images`), tasks.py (`--task grid`), encodings/ (one paper, one
file), continuation.py (what `poscli generate` does with a model of images), and views.py (what
`poscli inspect` shows of encodings of two axes).
"""
