"""Reading a build file: its fields with their lines, and the expansion of its substitutions."""
