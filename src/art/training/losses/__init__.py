"""One loss = one file = one function of `LossInputs`."""
