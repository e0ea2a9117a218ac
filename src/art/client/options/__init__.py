"""What a program may set: known names, those of other libraries, rates to begin with."""
