"""Mutation testing of a random sample: changes that a test should notice, and whether one does.

    make mutants SEED=1 COUNT=300

1. `draw.py` draws places in poscli's source and one small change at each (cosmic-ray's operators).
2. `coverage_map.py` runs all tests but the slow ones once, to learn which tests run which lines and how long they take.
3. `selection.py` picks the tests of a mutant: those that run its line, the nearest and fastest first.
4. `child.py` runs them in a forked process, in which one module is imported from the changed source.
5. `run.py` goes through the sample and keeps what came out; `summary.py` writes it for people.
6. `equivalent.toml` lists survivors that were shown to need no test, with the reason; they do not count as missed.

`MUTANTS_FLAGS=--again` tries the survivors of a sample once more, after tests were added. Everything lies in
`.mutants/`, which git ignores. A run that was stopped goes on where it was.
"""
