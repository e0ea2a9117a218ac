"""What an agent sends and gets, read off its own HTTP client."""
