"""What is learned, and how soon: the built-in tasks, real models, examples, RULER, environments."""
