"""What people read: tables in the terminal."""
