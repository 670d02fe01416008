"""Google Cloud Build: submitted, followed, and carried out on this machine."""
