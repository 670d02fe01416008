"""Models, the weights they start from, loss and optimizer, the SavedModel."""
