"""Import paths and names of older programs: one table, and the finder that makes their modules."""
