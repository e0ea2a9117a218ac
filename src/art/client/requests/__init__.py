"""What a backend asks of a server: registrations, training jobs and their events."""
