"""`builder init`: what a repository says, as an image.yaml; and the factory's wheel in it."""
