"""What every HTTP server and client of Holdfast shares."""
