"""What decides a result: a request, a suite, a run."""
