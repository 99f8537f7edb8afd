"""Sources of rows: each kind of data behind the same small interface."""
