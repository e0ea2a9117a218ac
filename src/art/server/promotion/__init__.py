"""The loop closes here: a trained step becomes the one that is served."""
