"""The functions of `import essp`, one module for each kind of thing."""
