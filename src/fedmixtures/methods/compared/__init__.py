"""Methods to compare with: by other authors, or without any cooperation."""
