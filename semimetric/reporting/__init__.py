"""Terminal output: tables and progress bars."""
