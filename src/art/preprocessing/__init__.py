"""Token arrays made in the client: names without code behind them, because the server keeps every sample."""
