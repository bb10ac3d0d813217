"""What a destination of reports must do."""
