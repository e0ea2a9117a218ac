"""The algorithms of the field by name, what each combination needs, and which combinations make no sense."""
