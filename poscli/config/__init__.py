"""Everything that decides a result, as frozen models: a person's request, a suite, and the configuration of a run."""
