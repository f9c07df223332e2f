"""What one encoding does: its numbers, measured properties and pictures.

This folder is a satellite: nothing of the core but the command imports it. Read in this order: subject.py (an encoding
with the layers that have it, at fresh or trained weights), views.py (which pictures it gets; a satellite's views.py has
more), then the numbers behind the pictures, whose base is in numbers.py: absolute.py, rotary.py, terms.py and probe.py.
figures.py draws them. properties.py has the property sheet, session.py what the command does with what it is asked for
(settings.py), and gallery.py all encodings at once.
"""
