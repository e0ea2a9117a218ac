"""What is measured on a GPU machine without a network: `README.md` beside this says how."""
