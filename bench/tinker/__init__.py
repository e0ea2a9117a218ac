"""What Tinker's API costs and gains here."""
