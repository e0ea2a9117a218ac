"""The processes that hold the weights: started, watched, started again."""
