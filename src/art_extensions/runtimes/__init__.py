"""`art runtime`: programs in environments of their own, installed and looked at."""
