"""How models compare: logs read back, tables and charts."""
