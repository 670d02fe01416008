"""Training: who does what on which devices, the steps, and what happens between them."""
