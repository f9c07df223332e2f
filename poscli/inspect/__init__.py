"""What one encoding does: its numbers, its measured properties and its pictures, as `poscli inspect` shows them.

Read in this order: subject.py (an encoding with the layers that have it, at fresh or trained weights), views.py (which
pictures it gets), then the numbers of each family of pictures: absolute.py with fourier.py and shift.py, rotary.py,
biases.py, probe.py with constant.py, order.py, and, of trained runs, trained.py and terms.py. figures.py draws
them, and figure.py puts the drawings on one sheet. properties.py has the property sheet, gallery.py all encodings at
once, and session.py and show.py what the command does.
"""
