"""What a person wrote in image.yaml, and what it resolves to."""
