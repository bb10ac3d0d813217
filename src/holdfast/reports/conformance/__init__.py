"""What every destination of reports must do, as test classes to inherit from."""
