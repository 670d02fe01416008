"""What the factory knows about each framework."""
