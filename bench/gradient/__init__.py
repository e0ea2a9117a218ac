"""Loss and backward: time, memory, packing."""
