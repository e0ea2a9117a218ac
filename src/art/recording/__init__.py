"""What an agent asks and is answered, read off its HTTP clients, becomes a trajectory."""
