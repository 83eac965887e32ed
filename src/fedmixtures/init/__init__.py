"""Where the iteration starts."""
