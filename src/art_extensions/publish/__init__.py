"""A checkpoint for other programs: exported, with a card, deployed."""
