"""What judges are shown and asked, and how their answers become scores."""
