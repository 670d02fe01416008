"""The formats of AI Platform Training, the predecessor of Vertex AI: reading and writing them."""
