"""The server, the client and the pages: what a request costs, alone and under load."""
