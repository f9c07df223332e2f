"""Long series of random damage. Each module has a function of a seed; fast tests call it with a few seeds."""
