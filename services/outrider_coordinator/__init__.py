"""The coordinator: owns each generation, decides which guessed tokens stand, streams them to the client."""
