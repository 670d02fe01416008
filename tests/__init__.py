"""The tests of the factory and of the trainer."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""
