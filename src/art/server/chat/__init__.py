"""Chat requests and replies: the one form that every dialect is translated into and out of."""
