"""What only a GPU shows: that what runs there gives what a CPU gives. `make test-gpu`."""
