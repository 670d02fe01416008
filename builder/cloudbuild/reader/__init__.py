"""Reading a cloudbuild.yaml: its fields, its substitutions, and what the service would refuse."""
