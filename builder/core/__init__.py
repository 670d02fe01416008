"""What every room uses: errors, events, files, settings, the project, YAML, HTTP."""
